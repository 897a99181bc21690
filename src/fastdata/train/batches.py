"""Batches on their way to the model, and where in its epoch a loader stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.train.state import random_state, restore_random

__all__ = ["Epoch", "first", "ready"]


class Epoch:
    """One pass over a loader, or the rest of one.

    A loader with `state_dict` and `load_state_dict` goes on by itself. Of another, the batches that were used before are drawn
    again and dropped, with torch's, numpy's and Python's generators as they were; then these are set to where they stood.

    Args:
        loader: any iterable.
        number: of the epoch, for `set_epoch` of the loader or of its sampler.
        resumed: {"place": what `state()` gave, "random": the generators then}, to go on from there.
    """

    def __init__(self, loader: Any, number: int, resumed: Mapping[str, Any] | None) -> None:
        self._loader: Any = loader
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        place: Any = resumed["place"] if resumed else {"used": 0}
        self.used, self._then = int(place["used"]), resumed and resumed["random"]
        if resumed and self._stateful:
            loader.load_state_dict(place["loader"])
        else:
            _set_epoch(loader, number)
        if resumed and not self._stateful:
            restore_random(place["random"])
        self._random = None if self._stateful else random_state()
        self.left = self._count_left()

    def _count_left(self) -> int | None:
        """Batches to come, or None if the loader does not know."""
        if self.used and hasattr(self._loader, "epoch_stop"):  # the batches before may have been of another number of ranks
            done = self._loader.state_dict()["consumed"]
            return int(-(-(self._loader.epoch_stop - done) // self._loader.global_batch_size))
        try:
            return len(self._loader) - int(self.used)
        except TypeError:
            return None

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        loader = self._loader.state_dict() if self._stateful else None
        return {"used": self.used, "loader": loader, "random": self._random}

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Each batch, and whether it is the last: known from the length, else by looking one ahead."""
        batches = iter(self._loader)
        if not self._stateful:
            for _ in range(self.used):
                next(batches, None)
        if self._then:
            restore_random(self._then)
        held: list[Any] = []
        for batch in batches:
            if self.left is not None:
                self.left -= 1
                self.used += 1
                yield batch, self.left == 0
                continue
            if held:
                self.used += 1
                yield held.pop(), False
            held.append(batch)
        if held:
            self.used += 1
            yield held.pop(), True
        if not self.used:
            raise FastDataError("the loader gave no batches: is it empty, or an iterator that was used up before?")


def _set_epoch(loader: Any, number: int) -> None:
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts: tuple[Any, ...] = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(number)
            return


def ready(batch: Any, device: torch.device, *, channels_last: bool) -> tuple[Any, int | None]:
    """A batch on the device, without the rows that fill it up, and how many rows are real; None: it does not say.

    If none is real, all stay, since every rank has to run the model.
    """
    valid, ids = getattr(batch, "valid", None), getattr(batch, "ids", None)

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        tensor = tensor[:valid] if valid and tensor.dim() else tensor
        return tensor.contiguous(memory_format=torch.channels_last) if channels_last and tensor.dim() == 4 else tensor

    batch = _each(batch, change)
    if ids is not None and hasattr(batch, "__dict__"):
        batch.valid, batch.ids = valid, ids[: valid or len(ids)]
    return batch, valid


def first(batch: Any) -> Tensor | None:
    """The first tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((tensor for part in parts if (tensor := first(part)) is not None), None)


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(part, change) for part in value))
    return type(value)(_each(part, change) for part in value) if isinstance(value, tuple | list) else value
