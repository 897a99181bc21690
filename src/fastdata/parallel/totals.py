"""Sums of losses, kept on the device until a person wants to see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastdata.parallel.world import World

__all__ = ["Totals"]

PENDING = 64  # updates that are added up at once


class Totals:
    """Losses, their counts and updates skipped, of all ranks, since they were last read."""

    def __init__(self, world: World, device: torch.device) -> None:
        self._world, self._device = world, device
        self.dtype = torch.float32 if device.type == "mps" else torch.float64  # the widest that there is
        self._sums = torch.zeros(3, dtype=self.dtype, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)  # skipped since the last that was applied
        self._pending, self._found = list[tuple[Tensor, Tensor | float, Tensor]](), list[Tensor]()

    def number(self, value: Tensor | float) -> Tensor:
        """A copy on the device, without a wait."""
        if isinstance(value, Tensor):
            return value.to(self._device, self.dtype, copy=True)
        return torch.full((), value, dtype=self.dtype, device=self._device)  # a tensor of a number would be copied, and wait

    def add(self, losses: Sequence[Tensor], counts: Sequence[Tensor | float], found: Tensor) -> None:
        """One update's, of its micro-batches; found: whether it was skipped, bool [] on the device."""
        self._pending.extend((loss, count, found) for loss, count in zip(losses, counts, strict=True))
        self._found.append(found)
        if len(self._found) == PENDING:
            self._add_up()

    def _add_up(self) -> None:
        """Many updates at once: an operation on one number takes the host as long as one on all of them."""
        if self._found:
            losses, counts, found = zip(*self._pending, strict=True)
            values = torch.stack((torch.stack([loss.to(self._device) for loss in losses]), self._numbers(counts)))
            self._sums[:2] += torch.where(torch.stack(found), 0.0, values).sum(1)
            skipped = torch.stack(self._found)
            self._sums[2] += skipped.sum()
            applied = torch.where(skipped, 0, torch.arange(1, len(skipped) + 1, device=self._device)).max()  # place of the last
            self._in_a_row = len(skipped) - applied + torch.where(applied == 0, self._in_a_row, 0)
            self._pending.clear()
            self._found.clear()

    def _numbers(self, counts: Sequence[Any]) -> Tensor:
        if any(isinstance(count, Tensor) for count in counts):
            return torch.stack([self.number(count) for count in counts])
        return torch.tensor(counts, dtype=self.dtype).to(self._device, non_blocking=True)

    def read(self) -> tuple[float, float, int]:
        """Losses, counts and skipped updates of all ranks since the last call. The host waits here."""
        self._add_up()
        losses, counts, skipped = self._world.sum(self._sums).tolist()
        self._sums.zero_()
        return losses, counts, round(skipped / self._world.size)

    def skipped_in_a_row(self) -> int:
        """Count the updates since the last one that was applied, also those read before. The host waits here."""
        self._add_up()
        return int(self._in_a_row)
