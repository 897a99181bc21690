"""Batches on their way to the model, and where in its epoch a loader stands."""

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
from fastdata.parallel.world import World

__all__ = ["Epoch", "check_part", "first", "ready"]

UNSPLIT = (RandomSampler, SequentialSampler)  # torch's own, which know of no ranks


def check_part(loader: Any, world: World, *, training: bool) -> None:
    """Look whether each rank gets a part of its own, so far as a loader tells.

    Raises:
        FastDataError: a Loader was split for other ranks than there are.
    """
    loader = loader.loader if isinstance(loader, Prefetcher) else loader
    rank, size = (getattr(getattr(loader, "part", None), name, None) for name in ("rank", "world_size"))
    if size is not None and (rank, size) != (world.rank, world.size):
        raise FastDataError(
            f"the Loader has the samples of rank {rank} of {size}, but this is rank {world.rank} of {world.size}: "
            "leave rank= and world_size= out, and it finds its part where torch.distributed or torchrun tells it"
        )
    plain = isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler
    own = isinstance(loader, DataLoader) and type(loader.dataset).__module__.startswith("fastdata.")  # ours warns by itself
    if training and world.size > 1 and world.rank == 0 and plain and not own and type(loader.sampler) in UNSPLIT:
        warn_user(
            f"this DataLoader gives the whole dataset to each of the {world.size} ranks: an epoch of training has every sample "
            f"{world.size} times. Use fastdata.Loader, which splits it, or DataLoader(sampler=DistributedSampler(dataset))"
        )


class Epoch:
    """One pass over a loader, or the rest of one.

    A loader with `state_dict` and `load_state_dict` goes on by itself. Of another, the batches that were used before are drawn
    again and dropped, with torch's, numpy's, Python's and the loader's own generators as they were then; afterwards the first
    three are again as they were.

    Args:
        loader: any iterable.
        number: of the epoch, for `set_epoch` of the loader or of its sampler.
        place: what `state()` gave, to go on from there.

    Attributes:
        used: batches so far.
        left: batches to come when it began; None: the loader does not know.
        over: set it when all are used: `state()` is then that of the next epoch.
    """

    def __init__(self, loader: Any, number: int, place: Mapping[str, Any] | None) -> None:
        self._loader: Any = loader
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.used, self.over = int(place["used"]) if place else 0, False
        self._then = random_state() if self.used else None
        set_epoch(loader, number)  # which may make a generator anew
        found = () if self._stateful else (getattr(part, "generator", None) for part in places(loader))
        self._generators = list(dict.fromkeys(own for own in found if isinstance(own, torch.Generator)))
        if place:
            self._go_to(place)
        self._began = {"random": None if self._stateful else random_state(), "own": self._own()}
        self._ahead: Any = {"loader": None, "random": place["ahead"] if place else None}  # before the last batch was drawn ahead
        self.left = self._count_left()

    def _go_to(self, place: Mapping[str, Any]) -> None:
        if self.used:
            if self._stateful != (place["loader"] is not None):
                raise FastDataError("this epoch was begun with another kind of loader: go on with one like that")
            if self._stateful:
                self._loader.load_state_dict(place["loader"])
            else:
                restore_random(place["random"])
        for generator, state in zip(self._generators, place["own"], strict=False):
            generator.set_state(state)

    def _own(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _count_left(self) -> int | None:
        if self.used and hasattr(self._loader, "epoch_stop"):  # the batches before may have been of another number of ranks
            done = self._loader.state_dict()["consumed"]
            return int(-(-(self._loader.epoch_stop - done) // self._loader.global_batch_size))
        try:
            return len(self._loader) - self.used
        except TypeError:
            return None

    def is_left(self, loader: Any) -> bool:
        """Whether this was a pass over that loader which ended before its last batch."""
        return loader is self._loader and not self.over and self.used > 0

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        if self.over:
            return {"used": 0, "loader": None, "ahead": None, "random": None, "own": self._own()}
        loader = (self._ahead["loader"] or self._loader.state_dict()) if self._stateful else None
        return {"used": self.used, "loader": loader, "ahead": self._ahead["random"], **self._began}

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Each batch, and whether it is the last: known from the length, else by looking one ahead."""
        batches = iter(self._loader)
        if not self._stateful:
            for _ in range(self.used):
                next(batches, None)
        if self._ahead["random"]:
            restore_random(self._ahead["random"])
        ahead = list(itertools.islice(batches, int(self.left is None)))  # it was drawn before the one in front of it was used
        if self._then:
            restore_random(self._then)
        yield from self._looking_ahead(ahead, batches) if self.left is None else self._counted(batches)
        if not self.used:
            raise FastDataError("the loader gave no batches; a generator does so once only: pass what makes a new one each epoch")

    def _counted(self, batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        for count, batch in enumerate(batches, 1):
            self.used += 1
            yield batch, count == self.left

    def _looking_ahead(self, ahead: list[Any], batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
        while ahead:
            self._ahead = {"loader": self._loader.state_dict() if self._stateful else None, "random": random_state()}
            batch, ahead = ahead[0], list(itertools.islice(batches, 1))
            self.used += 1
            yield batch, not ahead


def ready(batch: Any, device: torch.device, *, channels_last: bool) -> tuple[Any, int | None]:
    """A batch on the device, without the rows that fill it up, and how many rows are real; None: it does not say.

    If none is real, all stay, since every rank has to run the model.

    Raises:
        FastDataError: rows have to go, and a tensor has not one for each sample.
    """
    valid, ids = getattr(batch, "valid", None), getattr(batch, "ids", None)
    rows = len(ids) if valid and ids is not None else 0
    spare = rows - (valid or rows)  # these repeat samples

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        if spare and tensor.dim():
            if len(tensor) != rows:
                raise FastDataError(
                    f"the last batch of this rank repeats {spare} of {rows} samples, but a tensor {[*tensor.shape]} of it has not "
                    "one row for each, so what is repeated can't be left out: give the Loader drop_last=True"
                )
            tensor = tensor[:valid]
        return tensor.contiguous(memory_format=torch.channels_last) if channels_last and tensor.dim() == 4 else tensor

    batch = rebuilt(batch, change, device)
    if ids is not None and hasattr(batch, "__dict__"):
        batch.ids = ids[: valid or len(ids)]
    return batch, valid


def first(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((tensor for part in parts if (tensor := first(part)) is not None), None)
