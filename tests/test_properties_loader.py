"""A Loader of any dataset, with any engine and options, delivers the documented batches, however it is interrupted.

What is wanted is worked out here without a Loader: the order by `reference.order`, a rank's part by slices, and each sample by
itself.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, RandomSampler, Subset, TensorDataset

import corpora
import reference
import stores
from fastdata import (
    ArrayDataset,
    CenterCrop,
    LMDBDataset,
    Loader,
    MaskDataset,
    RAMDataset,
    RandomCrop,
    RandomResizedCrop,
    TableDataset,
    TokenDataset,
)
from support import Array

pytestmark = [
    pytest.mark.filterwarnings("ignore:a (list|RandomSampler) gives each of the"),
    pytest.mark.filterwarnings("ignore:global_batch_size is .* not a multiple"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
CROP = RandomResizedCrop(16)
NONE = 65_535


# ------------------------------------------------------------------------------------------- datasets, sample by sample


@dataclass(frozen=True)
class Kind:
    """A dataset, and what one of its samples is by itself.

    Attributes:
        make: the dataset, as a Loader is given it.
        sample: (index, which time in this epoch, seed, epoch, stored size, side of the crop) to an array for each tensor.
        sizes: pairs of stored size and side of the crop that a Loader may be asked for.
        dali: whether DALI makes the same pixels, to the bit.
        ordered: it draws its rows one by one, so that they are not shuffled.
        wraps: how torch may wrap it, and the Loader unwraps it again.
        shards: the number of samples of each, if they may be interleaved.
    """

    make: Callable[[], Any]
    sample: Callable[..., tuple[Array, ...]]
    sizes: tuple[tuple[int | None, int | None], ...] = ()
    dali: bool = False
    ordered: bool = False
    wraps: tuple[str, ...] = ("",)
    shards: tuple[int, ...] = ()


WRAPS = ("", "Subset", "ConcatDataset")


def alone(make: Callable[[], Any], k: int, repeat: int, seed: int, epoch: int, size: Any, side: Any) -> tuple[Array, ...]:
    """A sample with random numbers, read in a batch of its own."""
    dataset = make() if size is None else make().with_size(size)
    dataset = dataset if side is None else dataset.with_crop_size(side)
    pixels, targets = dataset.read_batch(np.array([k]), seed=seed, epoch=epoch, repeats=np.array([repeat]))
    if isinstance(pixels, dict):
        return *(each[0].transpose(2, 0, 1) for each in pixels.values()), targets[0]
    return pixels[0] if isinstance(dataset, ArrayDataset) else pixels[0].transpose(2, 0, 1), targets[0]


def item(make: Callable[[], Any], k: int, *_: Any) -> tuple[Array, ...]:
    """A sample without random numbers, as `dataset[k]` gives it."""
    value, target = make()[k]
    return value.numpy(), np.asarray(target)


def images(make: Callable[[], Any], **options: Any) -> Kind:
    return Kind(make := cache(make), partial(alone, make), wraps=WRAPS, **options)


def plain(make: Callable[[], Any], **options: Any) -> Kind:
    return Kind(make := cache(make), partial(item, make), wraps=WRAPS, **options)


class Drawing(torch.utils.data.Dataset[Any]):
    """Somebody else's dataset, which draws from all the generators there are."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, k: int) -> Any:
        return {"x": torch.rand(3), "y": torch.tensor([random.random(), np.random.rand(), k])}  # noqa: NPY002


class Sharded(TensorDataset):
    """91 numbers in shards of 7."""

    def __init__(self) -> None:
        super().__init__(torch.arange(91))

    def shards_of(self, indices: Array) -> Array:
        return indices // 7


def drawn(k: int, repeat: int, seed: int, epoch: int, *_: Any) -> tuple[Array, ...]:
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        own = reference.users_seed(seed, epoch, k, repeat)
        torch.manual_seed(own), random.seed(own), np.random.seed(own & reference.ONES)  # noqa: NPY002
        made = Drawing()[k]
    random.setstate(before[0]), np.random.set_state(before[1])  # noqa: NPY002
    return made["x"].numpy(), made["y"].numpy()


def noisy(pixels: Array) -> Array:
    return pixels ^ np.random.randint(0, 256, pixels.shape, np.uint8) ^ random.randrange(256)  # noqa: NPY002


def disk(codec: str = "jpeg", **view: Any) -> Any:
    return LMDBDataset(stores.store(codec), size=64, **view)


BLOCK, DOCUMENTS = 16, 60


def row(stream: Array, start: int, stop: int | None = None) -> Array:
    """A row of tokens, filled up to its length."""
    found = stream[start : min(start + BLOCK + 1, len(stream) if stop is None else stop)]
    return np.append(found, np.full(BLOCK + 1 - len(found), NONE)).astype(np.uint16)


@cache
def stream() -> Array:
    return corpora.tokens(corpora.store(DOCUMENTS))


@cache
def bounds() -> Array:
    return np.append(0, np.cumsum([len(document) for document in corpora.documents(corpora.store(DOCUMENTS))]))


def random_row(k: int, repeat: int, seed: int, epoch: int, *_: Any) -> tuple[Array, ...]:
    return (row(stream(), int(reference.fraction(seed, epoch, k, repeat) * (len(stream()) - BLOCK))),)


def document(k: int, *_: Any) -> tuple[Array, ...]:
    start, stop = bounds()[k : k + 2]
    return row(stream(), start, stop), np.asarray(min(stop - start, BLOCK + 1))


def masked_row(k: int, *_: Any) -> tuple[Array, ...]:
    of = np.searchsorted(bounds(), np.arange(k * BLOCK, k * BLOCK + BLOCK + 1), "right").clip(max=len(bounds()) - 1)
    return row(stream(), k * BLOCK), (of - of[0]).astype(np.uint16)


def tokens(**options: Any) -> Callable[[], Any]:
    return cache(partial(TokenDataset, corpora.store(DOCUMENTS), BLOCK, **options))


TABLE_ROWS = [3, 9, 0, 1, 1, 7, 4, 2]


def table_row(k: int, *_: Any) -> tuple[Array, ...]:
    x = TABLE_ROWS[k]
    return np.asarray(x, np.uint8), np.asarray(x % 2)


SIZES = ((None, None), (64, None), (96, 24), (None, 20))
KINDS: dict[str, Callable[[], Kind]] = {
    "jpeg": lambda: images(lambda: disk(crop=CROP, hflip=0.5), sizes=SIZES),
    "png": lambda: images(lambda: LMDBDataset(stores.store("png"), crop=RandomCrop(24, padding=9), vflip=0.5), sizes=SIZES),
    "ram": lambda: images(lambda: RAMDataset(stores.store("rgb"), size=(96, 64), crop=CROP, hflip=0.5), sizes=SIZES),
    "center": lambda: plain(lambda: disk("rgb", crop=CenterCrop((9, 70)))),
    "floats": lambda: plain(lambda: LMDBDataset(stores.floats(), crop=CenterCrop(9)).subset([*range(6)] * 3)),
    "unlabelled": lambda: plain(lambda: LMDBDataset(stores.unlabelled(), crop=CenterCrop(30))),
    "16 bits": lambda: images(lambda: LMDBDataset(stores.deep(), crop=RandomCrop(12)).subset([*range(6)] * 3)),
    "square": lambda: images(lambda: LMDBDataset(stores.square(), crop=RandomCrop(32, padding=4), hflip=0.5)),
    "still": lambda: plain(lambda: RAMDataset(stores.square("png"))),
    "cut jpeg": lambda: images(lambda: LMDBDataset(stores.store("jpeg"), crop=RandomCrop(40), hflip=0.5), dali=True),
    "masks": lambda: images(
        lambda: MaskDataset(stores.masked(), crop=RandomCrop((20, 21), padding=5), vflip=0.5).subset([*range(3)] * 7)
    ),
    "several": lambda: images(lambda: LMDBDataset(stores.several(), crop=CROP, hflip=0.5).subset([*range(6)] * 3)),
    "transform": lambda: images(lambda: disk("rgb", crop=CROP, transform=noisy)),
    "subset": lambda: images(lambda: disk(crop=CROP).subset([5, 3, 5, 20, 41, 3, 0, 5, 11])),
    "joined": lambda: images(lambda: disk(crop=CROP).split(0.3, seed=1)[0] + RAMDataset(stores.store("rgb"), size=96, crop=CROP)),
    "arrays": lambda: images(lambda: ArrayDataset(stores.arrays(), crop=RandomCrop((4, 9, 8)), flips=0.5).subset([0] * 11)),
    "masked arrays": lambda: images(lambda: ArrayDataset(stores.masked_arrays(), crop=RandomCrop((6, 7, 9)), flips=(0.5, 0, 0.3))),
    "RAM arrays": lambda: images(lambda: RAMDataset(stores.arrays(), crop=RandomCrop((4, 9, 8)), flips=0.5).subset([0] * 11)),
    "table": lambda: Kind(
        cache(lambda: TableDataset(stores.table(), target="y").subset(TABLE_ROWS)), table_row, wraps=("", "Subset")
    ),
    "random rows": lambda: Kind(tokens(), random_row, ordered=True),
    "rows in order": lambda: Kind(tokens(mode="sequential"), lambda k, *_: (row(stream(), k * BLOCK),)),
    "documents": lambda: Kind(tokens(mode="document"), document),
    "rows of documents": lambda: Kind(tokens(mode="sequential", documents="mask"), masked_row),
    "foreign": lambda: Kind(cache(Drawing), drawn),
    "shards": lambda: Kind(cache(Sharded), lambda k, *_: (np.asarray(k),), shards=(7,) * 13),
}


@cache
def kind_of(name: str) -> Kind:
    return KINDS[name]()


def wrapped(kind: Kind, how: str) -> Any:
    """The same samples, as torch wraps them."""
    dataset = kind.make()
    return {"": dataset, "Subset": Subset(dataset, range(len(dataset))), "ConcatDataset": ConcatDataset([dataset])}[how]


# --------------------------------------------------------------------------------------------------- what is wanted


class Told:
    """A sampler that is told the epoch."""

    def __init__(self, n: int) -> None:
        self.n, self.epoch = n, 0

    def __len__(self) -> int:
        return self.n + 3

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(told(self.n, self.epoch))


def told(n: int, epoch: int) -> list[int]:
    """Some samples come twice, some perhaps not at all."""
    return [(k * k + epoch) % n for k in range(n + 3)]


@dataclass(frozen=True)
class Options:
    """How a Loader is made: what decides its batches, and with what it makes them.

    Attributes:
        batch_size: of a rank.
        over_all: of all ranks, in place of `batch_size`; these may not divide it.
        order: "interleaved", or None.
        sampler: "": the Loader's own order. "list", "told", "random": indices. "batches": lists of them.
    """

    n: int
    batch_size: int
    over_all: int | None = None
    order: str | None = None
    world: int = 1
    rank: int = 0
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    sampler: str = ""
    schedule: dict[int, tuple[int | None, int | None]] | None = None

    @property
    def step(self) -> int:
        """What a batch advances the place by."""
        if self.sampler:
            return 1 if self.sampler == "batches" else self.batch_size
        return self.over_all or self.batch_size * self.world

    @property
    def total(self) -> int:
        return len(self.lists()) if self.sampler == "batches" else self.n + 3 * bool(self.sampler)

    @property
    def stop(self) -> int:
        return self.total - self.total % self.step if self.drop_last else self.total

    def size(self, epoch: int) -> tuple[int | None, int | None]:
        steps = {0: (None, None), **(self.schedule or {})}
        return steps[max(first for first in steps if first <= epoch)]

    def indices(self, epoch: int) -> list[int]:
        """What the sampler yields in an epoch."""
        if self.sampler == "random":  # torch's own, by torch's generator as it finds it
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(reference.users_seed(self.seed, epoch, 1 << 62, 0))
                return [*self.random()]
        return told(self.n, epoch if self.sampler == "told" else 0)

    def random(self) -> RandomSampler:
        return RandomSampler(range(self.n), replacement=True, num_samples=self.n + 3)  # type: ignore[arg-type]

    def lists(self) -> list[list[int]]:
        indices = told(self.n, 0)
        return [indices[k : k + 1 + k % self.batch_size] for k in range(0, len(indices), self.batch_size)]

    def arguments(self) -> dict[str, Any]:
        own = {"seed": self.seed, "rank": self.rank, "world_size": self.world, "schedule": self.schedule}
        if self.sampler == "batches":
            return {**own, "batch_sampler": self.lists()}
        samplers = {"": None, "list": told(self.n, 0), "told": Told(self.n), "random": self.random()}
        shuffle = {"shuffle": True, "order": self.order} if self.shuffle else {}
        size = {"global_batch_size": self.over_all} if self.over_all else {"batch_size": self.batch_size}
        return {**own, **shuffle, **size, "drop_last": self.drop_last, "sampler": samplers[self.sampler]}


@lru_cache(maxsize=64)
def order_of(n: int, shards: tuple[int, ...], seed: int, epoch: int) -> list[int]:
    """The samples of an epoch, shuffled: in lanes, if shards are given."""
    return reference.lanes([*shards], 8, seed, epoch) if shards else reference.order(n, seed, epoch)


Wanted = tuple[list[tuple[int, int]], int, int]


def wanted(kind: Kind, options: Options, epoch: int, start: int) -> Wanted:
    """The batch of this rank that begins at a place of an epoch: (index, which time) of each row, how many are real, its end."""
    if options.sampler == "batches":
        batches = options.lists()
        before = [k for batch in batches[:start] for k in batch]
        return times(before, batches[start]), len(batches[start]), start + 1
    stop = min(start + options.step, options.stop)
    if options.sampler:
        indices = options.indices(epoch)
        return times(indices[:start], indices[start:stop]), stop - start, stop
    shuffled = options.shuffle and not kind.ordered
    shards = kind.shards if options.order else ()
    indices = order_of(options.n, shards, options.seed, epoch) if shuffled else [*range(options.n)]
    mine = indices[start:stop][options.rank :: options.world]
    rows = -(-(stop - start) // options.world)
    filled = mine + [indices[stop - 1]] * (rows - len(mine))
    return [(k, 0) for k in filled], len(mine), stop


def times(before: list[int], indices: list[int]) -> list[tuple[int, int]]:
    seen, found = list(before), []
    for k in indices:
        found.append((k, seen.count(k)))
        seen.append(k)
    return found


def parts(batch: Any) -> list[Array]:
    """Every tensor of a batch, in order."""
    found = batch if isinstance(batch, tuple | list) else (batch,)
    flat = [value for part in found for value in (part.values() if isinstance(part, dict) else [part])]
    return [value.numpy() for value in flat]


# --------------------------------------------------------------------------------------------------------- the run

ENGINES: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "here, to a device": {"num_workers": 0, "device": "cpu"},
    "a worker": {"num_workers": 1, "prefetch_factor": 3},
    "two workers": {"num_workers": 2},
    "two workers, to a device": {"num_workers": 2, "prefetch_factor": 1, "device": "cpu", "device_prefetch": 3},
    "dali": {"num_workers": 1, "backend": "dali", "device": "cpu"},
}


def engines(kind: Kind) -> list[str]:
    """That read this kind; of tokens and tables all are the same one."""
    return [name for name in ENGINES if name != "dali" or (DALI and kind.dali)]


@dataclass
class Run:
    """A Loader under test, and where it should stand by what is documented."""

    kind: Kind
    options: Options
    engine: str
    wrapped: str = ""
    epoch: int = 0
    consumed: int = 0
    begun: bool = False
    live: Any = None
    kept: list[tuple[Any, list[Array]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loader = self.make()

    def make(self) -> Loader:
        return Loader(wrapped(self.kind, self.wrapped), **self.options.arguments(), **ENGINES[self.engine])

    def move(self, epoch: int, consumed: int = 0) -> None:
        self.epoch, self.consumed, self.begun = epoch, consumed, False

    def iterate(self) -> None:
        """A new pass: a new epoch, if the one before has handed out a batch."""
        if self.begun:
            self.move(self.epoch + 1)
        self.live = iter(self.loader)

    def take(self, count: int) -> None:
        """So many batches, at most to the end of the pass."""
        if self.live is None:
            self.iterate()
        for _ in range(count):
            if self.consumed >= self.options.stop:
                assert next(self.live, None) is None, "more batches than an epoch has"
                self.move(self.epoch + 1)
                self.live = None
                return
            self.check(next(self.live))

    def check(self, batch: Any) -> None:
        rows, valid, stop = wanted(self.kind, self.options, self.epoch, self.consumed)
        size, seed = self.options.size(self.epoch), self.options.seed
        samples = [self.kind.sample(k, repeat, seed, self.epoch, *size) for k, repeat in rows]
        arrays = [np.stack(columns) for columns in zip(*samples, strict=True)]
        assert batch.ids.tolist() == [k for k, _ in rows]
        assert (batch.valid, tuple(batch.position)) == (valid, (self.epoch, stop))
        self.equal(batch, arrays)
        self.kept.append((batch, arrays))
        self.consumed, self.begun = stop, True

    def equal(self, batch: Any, arrays: list[Array]) -> None:
        for made, want in zip(parts(batch), arrays, strict=True):
            assert (made.dtype, made.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(made, want)

    def leave(self, closed: bool) -> None:
        if self.live is not None and closed:
            self.live.close()
        self.live = None

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        if self.begun or epoch != self.epoch:
            self.live = None if self.begun else self.live
            self.move(epoch)

    def resume(self, elsewhere: tuple[Options, str] | None) -> None:
        """From the state, in this Loader or in another one, which may have other ranks, batches and engines."""
        state = json.loads(json.dumps(self.loader.state_dict()))
        step, begun = self.options.step, self.begun
        if self.consumed >= self.options.stop:
            self.move(self.epoch + 1)
        if elsewhere is not None:
            self.loader.close()
            self.options, self.engine = elsewhere
            self.loader, self.live = self.make(), None
        elif begun:
            self.live = None
        other_batches = not self.options.sampler and step != self.options.step
        with pytest.warns(UserWarning, match="samples in a batch over all ranks") if other_batches else nullcontext():
            self.loader.load_state_dict(state)
        self.move(self.epoch, self.consumed)
        if self.consumed >= self.options.stop:
            self.move(self.epoch + 1)

    def close(self) -> None:
        self.loader.close()


def options_for(kind: Kind, draw: Any) -> Options:
    n = len(kind.make())
    sampler = draw(st.sampled_from(["", "", "", "list", "told", "random", "batches"]))
    world = draw(st.sampled_from([1, 1, 2, 3, 7]))
    batch_size = draw(st.integers(1, 11) if n < 100 else st.integers(20, 99))
    options = Options(
        n=n,
        batch_size=batch_size,
        over_all=draw(st.none() | (st.just(batch_size * world) if sampler else st.integers(world, 40))),
        order=draw(st.sampled_from(["interleaved", None])) if kind.shards else None,
        world=world,
        rank=draw(st.integers(0, world - 1)),
        shuffle=not sampler and draw(st.booleans()),
        seed=draw(st.sampled_from([0, 5, 1 << 40, (1 << 64) - 1])),
        sampler=sampler,
        schedule=draw(st.none() | st.dictionaries(st.integers(0, 3), st.sampled_from(kind.sizes))) if kind.sizes else None,
    )
    fits = options.total >= options.step and sampler != "batches"
    return replace(options, drop_last=fits and draw(st.booleans()))


def elsewhere(run: Run, draw: Any) -> tuple[Options, str]:
    """Another Loader that may go on: with a sampler, the samples are this rank's own."""
    old, engine = run.options, draw(st.sampled_from(engines(run.kind)))
    if old.sampler or draw(st.booleans()):
        return old, engine
    world = draw(st.sampled_from([1, 2, 3, 7]))
    sizes = {"batch_size": draw(st.integers(1, 11)), "over_all": draw(st.none() | st.integers(world, 40))}
    new = replace(old, world=world, rank=draw(st.integers(0, world - 1)), drop_last=False, **sizes)
    return (new if old.n < 100 else old), engine


ACTIONS = ("take", "take", "take", "all", "iterate", "leave", "epoch", "resume", "move", "move", "close")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_run_with_any_engine_delivers_the_documented_batches(name: str, data: st.DataObject) -> None:
    kind, draw = kind_of(name), data.draw
    run = Run(kind, options_for(kind, draw), draw(st.sampled_from(engines(kind))), draw(st.sampled_from(kind.wraps)))
    try:
        for action in draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12)):
            if action == "take":
                run.take(draw(st.integers(1, 4)))
            elif action == "all":
                run.take(run.options.n + 4)
            elif action == "iterate":
                run.iterate()
            elif action == "leave":
                run.leave(closed=draw(st.booleans()))
            elif action == "epoch":
                run.set_epoch(draw(st.integers(0, 3)))
            elif action == "close":
                run.close()
            elif action in ("resume", "move"):
                run.resume(elsewhere(run, draw) if action == "move" else None)
        run.take(2)
        for batch, arrays in run.kept[-20:]:
            run.equal(batch, arrays)  # a batch stays what it was
    finally:
        run.close()
