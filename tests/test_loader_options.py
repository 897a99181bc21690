"""Arguments of the Loader: batch_transform, torch's own, a sampler's epoch, schedule, backend, and ranks that have to agree."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, Subset, TensorDataset

import stores
from corpora import store as corpus
from fastdata import (
    Augment,
    Batch,
    CenterCrop,
    GPUNormalize,
    LMDBDataset,
    Loader,
    MaskDataset,
    NextToken,
    RAMDataset,
    RandomResizedCrop,
    TableDataset,
    TokenDataset,
)
from fastdata.data.dataset import checksum
from fastdata.errors import MissingExtraError
from stores import COUNT, sources, square, store
from support import Array, run_ranks, worker_processes

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def images(**options: Any) -> Loader:
    return Loader(LMDBDataset(stores.square(), crop=CenterCrop(8)), 8, **{"num_workers": 0, **options})


def halves(batch: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": batch[0] / 2, "labels": batch[1]}


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"num_workers": 2}])
def test_a_batch_transform_is_applied_to_each_batch(options: dict[str, Any]) -> None:
    normalize = GPUNormalize(0.5, 0.25)
    inverted = pytest.importorskip("kornia").augmentation.RandomInvert(p=1.0)
    with images() as plain, images(batch_transform=[Augment(inverted), normalize, halves], **options) as loader:
        for before, batch in zip(plain, loader, strict=True):
            assert batch["pixel_values"].equal(normalize(255 - before[0]) / 2) and batch["labels"].equal(before[1])
            assert (batch.valid, batch.position) == (before.valid, before.position) and batch.ids.tolist() == before.ids.tolist()
    with images() as plain, images(batch_transform=normalize, **options) as loader:
        for before, batch in zip(plain, loader, strict=True):
            assert isinstance(batch, Batch) and batch[0].equal(normalize(before[0])) and batch[1].equal(before[1])


@pytest.mark.parametrize("options", [{}, {"mode": "document"}, {"mode": "sequential", "documents": "mask"}])
def test_next_token_takes_rows_and_the_numbers_of_their_documents(options: dict[str, Any]) -> None:
    dataset = TokenDataset(corpus(60), 16, **options)
    with Loader(dataset, 4) as plain, Loader(dataset, 4, batch_transform=NextToken()) as loader:
        for before, batch in zip(plain, loader, strict=True):
            masked = options.get("documents") == "mask"
            rows = before if isinstance(before, torch.Tensor) else before[0]
            wanted = NextToken()(rows, before[1]) if masked else NextToken()(rows)
            assert batch[0].equal(wanted[0]) and batch[1].equal(wanted[1]) and batch.ids.tolist() == before.ids.tolist()


def test_transforms_of_masks_and_of_tensors() -> None:
    dataset = MaskDataset(stores.masked(), crop=CenterCrop(16))
    with Loader(dataset, 2, num_workers=0, batch_transform=GPUNormalize(0.5, 0.25)) as loader:
        assert all(batch[0].is_floating_point() and not batch[1].is_floating_point() for batch in loader)
    with Loader([torch.tensor(k) for k in range(6)], 4, num_workers=0, batch_transform=torch.neg) as loader:  # type: ignore[arg-type]
        assert [(batch.tolist(), batch.valid) for batch in loader] == [([0, -1, -2, -3], 4), ([-4, -5], 2)]
    with pytest.raises(TypeError, match="batch_transform is 3"):
        images(batch_transform=3)


def test_a_batch_of_names_keeps_its_attributes() -> None:
    data = [{"x": torch.tensor([k]), "y": {"z": float(k)}} for k in range(6)]
    with Loader(data, 4, num_workers=0) as loader:  # type: ignore[arg-type]
        batch, last = loader
    assert (last.valid, last.ids.tolist(), last.position) == (2, [4, 5], (0, 6)) and isinstance(batch, dict)
    for other in (
        batch.to(torch.float64),
        pickle.loads(pickle.dumps(batch)),
        pytree.tree_map(torch.clone, batch),
        type(batch)({"a": batch["x"]}),
    ):
        assert (other.valid, other.ids.tolist(), other.position) == (4, [0, 1, 2, 3], (0, 4))
    assert pytree.tree_map(torch.sum, batch).ids is None


def test_torch_s_arguments_are_taken_at_their_defaults_and_refused_with_advice_otherwise() -> None:
    images(persistent_workers=False, worker_init_fn=None, generator=None, timeout=0, in_order=True, prefetch_factor=None).close()
    wrong = {"persistent_workers": True, "worker_init_fn": print, "generator": torch.Generator(), "timeout": 3.0}
    for name, value in {**wrong, "multiprocessing_context": "fork", "pin_memory_device": "cuda", "in_order": False}.items():
        with pytest.raises(ValueError, match=f"{name} is .*only torch's default"):
            images(**{name: value})
    with pytest.raises(TypeError, match="no argument 'shufle'"):
        images(shufle=True)


def test_lengths_and_endless_iteration() -> None:
    dataset = stores.COUNT
    with images(rank=1, world_size=4) as loader:
        assert (len(loader), len(loader.batch_sampler), len(loader.sampler)) == (2, 2, -(-dataset // 4))
        assert loader.collate_fn([1, 2]).tolist() == [1, 2]
    assert len(images(sampler=range(9)).sampler) == 9
    batches = [*BatchSampler(range(9), 4, False)]
    assert len(Loader(TensorDataset(torch.arange(9)), batch_sampler=batches).batch_sampler) == 3
    with images(shuffle=True) as loader:
        endless = loader.forever()
        assert [next(endless).position[0] for _ in range(13)] == [0] * 6 + [1] * 6 + [2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["sampler", "batch_sampler"])
def test_the_epoch_that_the_program_sets_on_a_sampler_is_respected(how: str, workers: int) -> None:
    dataset = TensorDataset(torch.arange(20))
    sampler, reference = (DistributedSampler(dataset, 2, 1, seed=3) for _ in range(2))
    sampler.set_epoch(4)
    given: Any = {"sampler": sampler, "batch_size": 3} if how == "sampler" else {"batch_sampler": BatchSampler(sampler, 3, False)}
    with Loader(dataset, rank=1, world_size=2, num_workers=workers, **given) as loader:
        for told, epoch in ((None, 4), (None, 5), (2, 2), (2, 2), (np.int64(3), 3), (None, 4), (9, 9)):
            if told is not None:
                sampler.set_epoch(told)
            reference.set_epoch(epoch)
            found = list(loader)
            assert np.concatenate([batch.ids for batch in found]).tolist() == list(reference)
            assert {batch.position[0] for batch in found} == {epoch}


def test_loaders_that_share_a_sampler_count_their_own_epochs() -> None:
    dataset = TensorDataset(torch.arange(20))
    sampler = DistributedSampler(dataset, 1, 0)
    loaders = [Loader(dataset, 4, sampler=sampler, num_workers=0) for _ in range(2)]
    for told, which, epoch in ((None, 0, 0), (None, 0, 1), (None, 1, 0), (5, 0, 5), (None, 1, 5), (None, 1, 6), (None, 0, 6)):
        if told is not None:
            sampler.set_epoch(told)
        assert {batch.position[0] for batch in loaders[which]} == {epoch}


class Own(RandomSampler):
    rank = 1


def test_a_sampler_that_gives_all_ranks_the_same_is_warned_of() -> None:
    data: Any = range(20)
    for sampler in (RandomSampler(data), [*data], data, Own(data), DistributedSampler(data, 2, 1)):
        given: Any
        for given in ({"sampler": sampler, "batch_size": 2}, {"batch_sampler": BatchSampler(sampler, 2, False)}):
            told = pytest.warns(UserWarning, match="gives each of the 2 ranks the same samples")
            with nullcontext() if hasattr(sampler, "rank") else told:  # other warnings are errors
                Loader(TensorDataset(torch.arange(20)), rank=1, world_size=2, num_workers=0, **given)


@pytest.mark.parametrize("base", [Sampler, DistributedSampler])
def test_the_epochs_of_a_sampler_that_does_not_tell_them_are_left_to_the_program(base: Any) -> None:
    class Told(base):  # type: ignore[misc]  # whose `epoch`, if it has one, stays 0
        where = 0

        def set_epoch(self, epoch: int) -> None:
            self.where = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([self.where, self.where + 1])

        def __len__(self) -> int:
            return 2

    sampler = Told() if base is Sampler else Told(range(20), 1, 0)
    with Loader(TensorDataset(torch.arange(20)), 2, sampler=sampler, num_workers=0) as loader:
        for epoch in (5, 5, 9):
            sampler.set_epoch(epoch)
            assert [batch[0].tolist() for batch in loader] == [[epoch, epoch + 1]]


class Counts:
    """Counts its epochs by itself."""

    epoch = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(self.epoch, self.epoch + 6))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_is_asked_once_for_each_pass_as_by_torch(workers: int) -> None:
    data = TensorDataset(torch.arange(20))
    theirs = DataLoader(data, 2, sampler=Counts())  # type: ignore[arg-type]
    with Loader(data, 2, sampler=Counts(), num_workers=workers) as ours:
        for count in (3, 1, 2, 3):  # batches of each pass
            found, wanted = ([batch[0].tolist() for batch in islice(one, count)] for one in (ours, theirs))
            assert found == wanted


def counted(path: Path, pixels: Array) -> Array:
    """What a transform gets, counted in a file, which all workers can."""
    with path.open("ab") as file:
        file.write(b".")
    return pixels


@pytest.mark.parametrize("workers", [0, 2])
def test_a_schedule_changes_size_and_crop_without_new_workers_or_lost_batches(workers: int, tmp_path: Path) -> None:
    dataset = LMDBDataset(store(), crop=RandomResizedCrop(60), transform=partial(counted, tmp_path / "made"))
    schedule = {1: 64, 2: (96, 48), 4: (None, 80)}  # epoch 3 is as epoch 2
    with Loader(dataset, 8, num_workers=workers, schedule=schedule) as loader:
        sides = [{batch[0].shape[2] for batch in loader}]
        alive = sorted(worker_processes())
        sides += [{batch[0].shape[2] for batch in loader} for _ in range(4)]
        assert sides == [{60}, {60}, {48}, {48}, {80}]
        assert sorted(worker_processes()) == alive and len(alive) >= workers
        stats = loader.stats()
        assert stats.copies == 0 and stats.slot_bytes >= stats.slots * 8 * 80 * 80 * 3  # room for the largest
        ahead = 2 * workers * 8
        assert (tmp_path / "made").stat().st_size <= 5 * COUNT + ahead, "some were made twice"


def test_a_schedule_that_does_not_fit_the_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="the dataset has no crop"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={0: (None, 16)})
    with pytest.raises(ValueError, match=r"schedule is {0: 'large'}, but must be"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={0: "large"})
    with pytest.raises(Exception, match="has no size 7"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={3: 7})
    with pytest.raises(ValueError, match="schedule asks for crop 16, but the dataset has several crops"):
        Loader(LMDBDataset(square(), crop=[CenterCrop(16)] * 2), 8, num_workers=0, schedule={1: (None, 16)})
    with pytest.raises(TypeError, match="a schedule needs one of fastdata's datasets of images"):
        Loader(TensorDataset(torch.arange(4)), 2, num_workers=0, schedule={1: 64})


def photos(**options):
    return LMDBDataset(store("jpeg"), **{"crop": RandomResizedCrop(32), "hflip": 0.5, **options})


def test_torch_unless_asked_otherwise():
    assert Loader(photos(), 8).backend == "torch"
    with pytest.raises(ValueError, match=r'backend is .tensorflow., but must be "torch" or "dali"'):
        Loader(photos(), 8, backend="tensorflow")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: LMDBDataset(store()), "not JPEGs that --codec jpeg stored"),
        (lambda: RAMDataset(store("jpeg"), decoded=True), "not JPEGs that --codec jpeg stored"),
        (lambda: RAMDataset(sorted(sources().rglob("*.png"))), "not JPEGs that --codec jpeg stored"),
        (lambda: photos(transform=np.flipud), "has a transform"),
        (lambda: [1, 2, 3], "a list has no images"),
    ],
)
def test_datasets_that_dali_does_not_take(make, reason):
    with pytest.raises(ValueError, match=f'backend is "dali".*{reason}.*use backend="torch"'):
        Loader(make(), 2, backend="dali")


def test_without_dali(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["nvidia", "dali"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingExtraError, match="pip install nvidia-dali-cuda1"):
        Loader(photos(), 8, backend="dali")


def test_datasets_of_other_samples_have_other_checksums() -> None:
    """By these, ranks compare their datasets."""

    def labelled(classes: int) -> TensorDataset:
        dataset = TensorDataset(torch.arange(20))
        dataset.targets = [k % classes for k in range(20)]  # type: ignore[attr-defined]
        return dataset

    def table(*values: int) -> TableDataset:
        return TableDataset(pa.table({"x": values, "y": (0, 1)}), target="y")

    store, numbers = LMDBDataset(stores.square()), TensorDataset(torch.arange(20))
    pairs: list[tuple[Any, Any]] = [
        (store, LMDBDataset(stores.square("jpeg"))),
        (store, store.subset(range(20))),
        (store.subset([0, 1]), store.subset([1, 0])),
        (Subset(numbers, [0, 1]), Subset(numbers, [0, 2])),
        (labelled(3), labelled(4)),
        (table(1, 2), table(1, 3)),
        (TokenDataset(corpus(60), 4), TokenDataset(stores.tokens(), 4)),
    ]
    for one, other in pairs:
        assert checksum(one) == checksum(pickle.loads(pickle.dumps(one))) != checksum(other)


RANKS = """
import json, sys, time, warnings, zlib
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler, Subset, TensorDataset, WeightedRandomSampler
from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.errors import LoaderError
from fastdata.loader import ranks

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dataset, odd = TensorDataset(torch.arange(20)), int(rank == size - 1)
longer = TensorDataset(torch.arange(20 + 9 * odd))


class Own:  # no sampler of torch's, and no subclass
    def __init__(self, indices, **others):
        self.indices = indices
        self.__dict__.update(others)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


cropped = LMDBDataset(sys.argv[2], crop=RandomResizedCrop(8))
same, other, half = [*range(20)], [*range(19), 0], [k % 20 for k in range(rank, rank + 20, size)]
weights = WeightedRandomSampler([1.0] * 20, 20)
lists, halves = [[0, 1, 2], [3, 4]], [half[:3], half[3:6]]
right = {
    "sampler": (dataset, {"sampler": DistributedSampler(dataset)}),
    "own, split": (dataset, {"sampler": Own(half)}),
    "own, another": (dataset, {"sampler": Own(other if odd else same)}),
    "lists, split": (dataset, {"batch_sampler": halves}),
    "one sample": (TensorDataset(torch.arange(1)), {"sampler": DistributedSampler(TensorDataset(torch.arange(1)))}),
    "a store": (cropped, {}),
    "every own sample": (dataset, {"sampler": Own(same), "split": False}),
    "given": (dataset, {"rank": rank, "world_size": size, "seed": odd}),
    "every sample": (dataset, {"split": False, "seed": odd}),
    "equal": (dataset, {"shuffle": True}),
}
the_same = {
    "own": (dataset, {"sampler": Own(same)}),
    "knows its rank": (dataset, {"sampler": Own(same, rank=rank, num_replicas=size)}),
    "weights": (dataset, {"sampler": weights}),
    "not told": (dataset, {"sampler": DistributedSampler(dataset, 1, 0)}),
    "lists": (dataset, {"batch_sampler": lists}),
    "own lists": (dataset, {"batch_sampler": Own(lists)}),
    "sampler of lists": (dataset, {"batch_sampler": BatchSampler(Own(same), 3, False)}),
}
differ = {
    "seed": (dataset, {"shuffle": True, "seed": odd}),
    "shuffle": (dataset, {"shuffle": bool(odd)}),
    "dataset": (Subset(dataset, other if odd else same), {}),
    "num_samples": (longer, {}),
    "len": (dataset, {"sampler": range(20 + 9 * odd)}),
    "epoch": (dataset, {}),
}
found = {}
for name, (data, options) in (right | the_same | differ).items():
    options = {"batch_size": None if "batch_sampler" in options else 3, **options}
    loader = Loader(data, num_workers=int(name == "weights"), **options)
    if name == "epoch":
        loader.set_epoch(odd)
    try:
        found[name] = [k for batch in loader for k in batch.ids[: batch.valid].tolist()]
        list(loader)  # compared once
    except LoaderError as error:
        found[name] = str(error)
repeating = Own(same[:9], num_repeats=3, rank=rank, num_replicas=size)
batches = [*Loader(cropped, 3, sampler=repeating, num_workers=0)]
found["looks"] = [zlib.crc32(image.numpy().tobytes()) for images, _ in batches for image in images.contiguous()]
found["names"] = [[*right], [*the_same], [*differ]]
ranks.PATIENCE_S = 0.3
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if rank:
        time.sleep(1.5)  # while rank 0 iterates alone
    found["late"] = len(list(Loader(dataset, 3, num_workers=0)))
    found["told"] = [str(each.message) for each in caught if "waits" in str(each.message)]
if rank == 0:
    found["alone"] = sum(len(batch.ids) for batch in Loader(dataset, 3, num_workers=0, split=False))
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_differ_are_an_error_at_the_first_pass(size: int, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    assert run_ranks(size, sys.executable, tmp_path / "ranks.py", tmp_path, stores.square()) == 0
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    right, the_same, differ = ranks[0]["names"]
    for found in ranks:
        assert not [name for name in right if isinstance(found[name], str)], found
        assert all("gives each of the" in found[name] and "split=False" in found[name] for name in the_same), found
        assert all(found[name].startswith(f"{name} is ") and "must be equal" in found[name] for name in differ), found
    assert sorted(k for found in ranks for k in found["equal"]) == [*range(20)]
    for name in ("sampler", "own, split"):
        assert {k for found in ranks for k in found[name]} == {*range(20)}
    for name in ("every sample", "every own sample"):
        assert all(found[name] == [*range(20)] for found in ranks) and ranks[0]["alone"] == 20
    assert ranks[0]["given"] == [*range(0, 20, size)]
    assert len({look for found in ranks for look in found["looks"]}) == 9 * size, "a sample looks otherwise on each rank"
    assert len({found["late"] for found in ranks}) == 1 and not ranks[-1]["told"]
    (told,) = ranks[0]["told"]
    assert told.startswith("rank 0 waits for the other ranks") and "split=False" in told
