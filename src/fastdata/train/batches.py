"""Batches on their way to the model, and a loader's place in its epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from fastdata.checkpoint.states import random_state, restore_random
from fastdata.errors import FastDataError, warn_user
from fastdata.gpu.copies import rebuilt
from fastdata.gpu.prefetcher import Prefetcher, places, set_epoch
from fastdata.gpu.ragged import Ragged
from fastdata.parallel.world import World
from fastdata.system.torch_private import pytree

__all__ = ["Epoch", "check_part", "first_tensor", "to_device"]

WORLD = World()
UNSPLIT = (RandomSampler, SequentialSampler)  # torch's samplers that do not know about ranks


def check_part(loader: Any, world: World, *, training: bool) -> None:
    """Check that each rank gets its own part of the data, as far as the loader tells. Warn if a DataLoader does not split.

    Raises:
        FastDataError: if a Loader was split for other ranks than there are.
    """
    loader = loader.loader if isinstance(loader, Prefetcher) else loader
    rank, size = (getattr(getattr(loader, "part", None), name, None) for name in ("rank", "world_size"))
    if size is not None and (rank, size) != (world.rank, world.size):
        raise FastDataError(
            f"the Loader has the samples of rank {rank} of {size}, but this is rank {world.rank} of {world.size}: "
            "leave rank= and world_size= out, and it finds its part where torch.distributed or torchrun tells it"
        )
    plain = isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler
    own = isinstance(loader, DataLoader) and type(loader.dataset).__module__.startswith("fastdata.")  # these warn themselves
    if training and world.size > 1 and world.rank == 0 and plain and not own and type(loader.sampler) in UNSPLIT:
        warn_user(
            f"this DataLoader gives the whole dataset to each of the {world.size} ranks: an epoch of training has every sample "
            f"{world.size} times. Use fastdata.Loader, which splits it, or DataLoader(sampler=DistributedSampler(dataset))"
        )


class Epoch:
    """One pass over a loader, or the rest of one.

    A loader with `state_dict` and `load_state_dict` resumes by itself. With any other loader, the batches used before are drawn
    again and dropped, while the generators of torch, numpy, Python and the loader are set as they were then. Afterwards the first
    three are restored.

    Args:
        loader: any iterable.
        number: the epoch's number, for `set_epoch` of the loader or of its sampler.
        place: a result of `state()`, to continue from there. None: start the epoch.
        world: the ranks, all of which need as many batches.

    Raises:
        FastDataError: the ranks have different numbers of batches. If loaders have no len(), this is found when the first one ends.

    Attributes:
        used: batches used so far.
        left: batches to come when this object was made. None if the loader does not know.
        over: set it when all batches are used. `state()` is then the start of the next epoch.
    """

    def __init__(self, loader: Any, number: int, place: Mapping[str, Any] | None, world: World = WORLD) -> None:
        self._loader: Any = loader
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.used = int(place["used"]) if place else 0
        self.over = False
        self._random_now = random_state() if self.used else None
        set_epoch(loader, number)  # it may replace a generator
        found = () if self._stateful else (getattr(part, "generator", None) for part in places(loader))
        self._generators = list(dict.fromkeys(own for own in found if isinstance(own, torch.Generator)))
        if place:
            self._go_to(place)
        self._start = {"random": None if self._stateful else random_state(), "own": self._generator_states()}
        # The states before the last batch was drawn ahead:
        self._ahead: Any = {"loader": None, "random": place["ahead"] if place else None}
        self.left = self._count_left()
        self._world = world
        if len(set(counts := world.gather(self.left))) > 1:
            raise _unequal(f"{', '.join(map(str, counts))} batches, rank by rank")

    def _go_to(self, place: Mapping[str, Any]) -> None:
        if self.used:
            if self._stateful != (place["loader"] is not None):
                raise FastDataError("this epoch was started with another kind of loader: use that kind to continue it")
            if self._stateful:
                self._loader.load_state_dict(place["loader"])
            else:
                restore_random(place["random"])
        for generator, state in zip(self._generators, place["own"], strict=False):
            generator.set_state(state)

    def _generator_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _count_left(self) -> int | None:
        if self.used and hasattr(self._loader, "epoch_stop"):  # the number of ranks may have changed since
            done = self._loader.state_dict()["consumed"]
            return int(-(-(self._loader.epoch_stop - done) // self._loader.global_batch_size))
        try:
            return len(self._loader) - self.used
        except TypeError:
            return None

    def is_left(self, loader: Any) -> bool:
        """Return whether this was a pass over `loader` that ended before its last batch."""
        return loader is self._loader and not self.over and self.used > 0

    def state(self) -> dict[str, Any]:
        """Return the place in the epoch."""
        if self.over:
            return {"used": 0, "loader": None, "ahead": None, "random": None, "own": self._generator_states()}
        loader = (self._ahead["loader"] or self._loader.state_dict()) if self._stateful else None
        return {"used": self.used, "loader": loader, "ahead": self._ahead["random"], **self._start}

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Yield each batch and whether it is the last, known from the length or by drawing one batch ahead."""
        batches = iter(self._loader)
        if not self._stateful:
            for _ in range(self.used):
                next(batches, None)
        if self._ahead["random"]:
            restore_random(self._ahead["random"])
        ahead = list(itertools.islice(batches, int(self.left is None)))  # drawn before the batch in front of it was used
        if self._random_now:
            restore_random(self._random_now)
        yield from self._looking_ahead(ahead, batches) if self.left is None else self._counted(batches)
        if not self.used:
            raise FastDataError("the loader gave no batches; a generator can be read only once: pass an iterable that starts again")

    def _counted(self, batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        for count, batch in enumerate(batches, 1):
            self.used += 1
            yield batch, count == self.left

    def _looking_ahead(self, ahead: list[Any], batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        while ahead:
            self._ahead = {"loader": self._loader.state_dict() if self._stateful else None, "random": random_state()}
            batch, ahead = ahead[0], list(itertools.islice(batches, 1))
            self.used += 1
            if self._world.size > 1:
                ended = self._world.max(torch.tensor([not ahead, bool(ahead)]).int(), on_hosts=True)
                if ended.all():
                    raise _unequal(f"different numbers of batches, since only some end after {self.used}")
            yield batch, not ahead


def _unequal(found: str) -> FastDataError:
    return FastDataError(
        f"the loaders have {found}, but ranks would wait for each other: give all as many, as fastdata.Loader does, and "
        "DataLoader(sampler=DistributedSampler(dataset))"
    )


def to_device(batch: Any, device: torch.device, *, channels_last: bool) -> tuple[Any, int | None]:
    """Return the batch on the device without its filling rows, and its number of real rows, or None if it does not say.

    If no row is real, all stay, since every rank has to run the model.

    Raises:
        FastDataError: if rows have to go, and a tensor, a Ragged or a list of Python values does not have one row per sample.
    """
    valid, ids = getattr(batch, "valid", None), getattr(batch, "ids", None)
    rows = len(ids) if valid and ids is not None else 0
    spare = rows - (valid or rows)  # rows that repeat samples

    def change(part: Any) -> Any:
        if spare and not (isinstance(part, Tensor) and not part.dim()):
            if len(part) != rows:
                found = f"tensor {[*part.shape]}" if isinstance(part, Tensor) else f"{type(part).__name__} of {len(part)}"
                raise FastDataError(
                    f"the last batch of this rank repeats {spare} of {rows} samples, but a {found} in it does not "
                    "have one row per sample, so the repeated rows cannot be removed: give the Loader drop_last=True"
                )
            part = part[:valid]
        if isinstance(part, list):
            return part
        part = part.to(device, non_blocking=True)
        return part.contiguous(memory_format=torch.channels_last) if channels_last and _is_image(part) else part

    batch = rebuilt(batch, change, device, is_part=_has_rows)
    if ids is not None and hasattr(batch, "__dict__"):
        batch.ids = ids[: valid or len(ids)]
    return batch, valid


def _has_rows(part: Any) -> bool:
    """Return whether it has a row for each sample, besides tensors: a Ragged, or a list of text or other values of Python."""
    return isinstance(part, Ragged) or (
        isinstance(part, list) and bool(part) and not any(hasattr(leaf, "to") for leaf in pytree.tree_leaves(part))
    )


def _is_image(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 4


def first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)
