"""Where and how a model runs: ranks, device, precision and memory layout."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.gpu.copies import map_tensors
from fastdata.gpu.ragged import Ragged
from fastdata.system.torch_private import pytree
from fastdata.train.world import World

__all__ = ["PRECISIONS", "Compute"]

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
EMPTY = nullcontext()


@dataclass(frozen=True)
class Compute:
    """Where and how a model runs.

    Attributes:
        dtype: the type of autocast, or None.
        channels_last: memory layout of 4-D tensors.
    """

    world: World
    device: torch.device
    dtype: torch.dtype | None
    channels_last: bool

    @property
    def wide(self) -> torch.dtype:
        """The widest float type of the device, for sums."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def number(self, value: Any) -> Tensor:
        """Return a copy of a number on the device, in the widest type, without waiting."""
        if isinstance(value, Tensor):
            return value.detach().to(self.device, self.wide, copy=True)
        return torch.full((), value, dtype=self.wide, device=self.device)  # torch.tensor would copy it, and wait

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is None and not torch.is_autocast_enabled(self.device.type):
            return EMPTY
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def place(self, batch: Any) -> tuple[Any, int | None]:
        """Return the batch on the device without its filling rows, and its number of real rows, or None if it does not say.

        If no row is real, all stay, since every rank has to run the model.

        Raises:
            FastDataError: if rows have to go, and a tensor, a Ragged or a list of Python values does not have one row per sample.
        """
        if type(batch) in (tuple, list) and not self.channels_last and all(self._is_here(part) for part in batch):
            return batch, None
        valid, ids = getattr(batch, "valid", None), getattr(batch, "ids", None)
        rows = len(ids) if valid and ids is not None else 0
        spare = rows - (valid or rows)  # rows that repeat samples
        seen = list[int]()  # the rows of its parts

        def refuse(what: str) -> FastDataError:
            return FastDataError(
                f"the last batch of this rank repeats {spare} of {rows} samples, but {what} does not have one row per sample, so "
                "these rows cannot be removed: give the Loader drop_last=True"
            )

        def change(part: Any) -> Any:
            if spare and not (isinstance(part, Tensor) and not part.dim()):
                if len(part) != rows:
                    raise refuse(f"{type(part).__name__} of {len(part)}")
                seen.append(rows)
                part = part[:valid]
            if isinstance(part, list):
                return part
            part = part.to(self.device, non_blocking=True)
            as_image = self.channels_last and isinstance(part, Tensor) and part.dim() == 4
            return part.contiguous(memory_format=torch.channels_last) if as_image else part

        batch = map_tensors(batch, change, self.device, is_part=_has_rows)
        if spare and not seen:  # an object whose tensors nobody knows
            raise refuse(type(batch).__name__)
        if ids is not None and hasattr(batch, "__dict__"):
            batch.ids = ids[: valid or len(ids)]
        return batch, valid

    def _is_here(self, part: Any) -> bool:
        return type(part) is Tensor and part.device == self.device


def _has_rows(part: Any) -> bool:
    """Return whether it has a row for each sample, besides tensors: a Ragged, or a list of text or other values of Python."""
    return isinstance(part, Ragged) or (
        isinstance(part, list) and bool(part) and not any(hasattr(leaf, "to") for leaf in pytree.tree_leaves(part))
    )
