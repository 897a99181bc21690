"""One pass over a loader, and the position in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError, warn_user
from fastdata.gpu.prefetcher import loader_parts, set_epoch
from fastdata.system.torch_private import has_iterator, let_have_iterator
from fastdata.train.checkpoint import random_state, restore_random
from fastdata.train.world import World

END = object()
NO_BATCHES = "datasets smaller than a batch need drop_last=False; a generator can be read only once: pass an iterable that restarts"


def check_rank(loader: Any, world: World) -> None:
    """Raise an error if a Loader was split for other ranks than there are."""
    part = getattr(loader, "part", None)  # a Prefetcher has those of its loader
    rank, size = getattr(part, "rank", None), getattr(part, "world_size", None)
    if size is not None and (rank, size) != (world.rank, world.size):
        raise FastDataError(
            f"the Loader has the samples of rank {rank} of {size}, but this is rank {world.rank} of {world.size}: "
            "leave out rank, world_size and split"
        )


class Epoch:
    """One pass over a loader, or the rest of one.

    A loader with `state_dict` and `load_state_dict` resumes by itself. With any other loader, the batches used before are drawn
    again and dropped, while the generators of torch, numpy, Python and the loader are set as they were then. Afterwards the first
    three are restored. All ranks need equally many batches; without len(), this is checked with each batch.

    Args:
        number: the epoch's number, for `set_epoch` of the loader or of its sampler.
        position: a result of `state()`, to continue from there, or None to start the epoch.

    Attributes:
        used, total: batches used so far, and batches of the epoch (None if the loader does not know).
        over: all batches are used.
    """

    def __init__(self, loader: Any, number: int, position: Mapping[str, Any] | None, world: World) -> None:
        self.loader: Any = loader
        self._world = world
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.used = int(position["used"]) if position else 0
        self.over = False
        self._now = random_state() if self.used else None
        set_epoch(loader, number)  # it may replace a generator
        found = () if self._stateful else (getattr(part, "generator", None) for part in loader_parts(loader))
        self._generators = list(dict.fromkeys(own for own in found if isinstance(own, torch.Generator)))
        if position:
            self._go_to(position)
        self._start = {"random": None if self._stateful else random_state(), **self._own_state()}
        self.total = self._count()
        if len(set(counts := world.gather(self.total))) > 1:
            raise _unequal(f"{', '.join(map(str, counts))} batches, rank by rank")

    def _go_to(self, position: Mapping[str, Any]) -> None:
        if not self._stateful:
            before = random_state()
            let_have_iterator(self.loader, position.get("has_iterator", False))
            restore_random(before)
        if self.used:
            if self._stateful != (position["loader"] is not None):
                raise FastDataError("this epoch was started with another kind of loader: use that kind to continue it")
            if self._stateful:
                self.loader.load_state_dict(position["loader"])
            else:
                restore_random(position["random"])
        for generator, state in zip(self._generators, position["own"], strict=False):
            generator.set_state(state)

    def _own_state(self) -> dict[str, Any]:
        """Return the states of the loader's generators, and whether its next pass continues an iterator."""
        return {"own": [generator.get_state() for generator in self._generators], "has_iterator": has_iterator(self.loader)}

    def _count(self) -> int | None:
        if self.used and self._stateful and hasattr(self.loader, "epoch_stop"):  # the number of ranks may have changed since
            done = self.loader.state_dict()["consumed"]
            return self.used - int(-(self.loader.epoch_stop - done) // self.loader.global_batch_size)
        try:
            return len(self.loader)
        except TypeError:
            return None

    def state(self) -> dict[str, Any]:
        """Return the position in the epoch, or the start of the next one if all batches are used."""
        if self.over:
            return {"used": 0, "loader": None, "random": None, **self._own_state()}
        return {"used": self.used, "loader": self.loader.state_dict() if self._stateful else None, **self._start}

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Yield each batch, and whether it is known to be the last."""
        batches = iter(self.loader)
        for _ in range(0 if self._stateful else self.used):
            next(batches, None)
        if self._now:
            restore_random(self._now)
        while self.used != self.total:
            batch = next(batches, END)
            ended = self._world.gather(batch is END) if self.total is None else [batch is END]
            if any(ended) and not (all(ended) and (self.total is None or self._world.size == 1)):
                raise _unequal(f"different numbers of batches or a wrong len(), as one ends after {self.used}")
            if batch is END:
                break
            self.used += 1
            yield batch, self.used == self.total
        if not self.used:
            raise FastDataError(f"the loader gave no batches: {NO_BATCHES}")
        more = self.used == self.total and next(batches, END) is not END  # which also ends the loader's own epoch
        if more or self.total not in (None, self.used):
            found = "more batches, which are left out" if more else f"only {self.used} batches"
            warn_user(f"the loader's len() is {self.total}, but it gave {found}: correct len(), which schedules use")
        self.over = True


def _unequal(found: str) -> FastDataError:
    return FastDataError(f"the loaders have {found}, so ranks would hang: give them equally many batches, as fastdata.Loader does")


def first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)
