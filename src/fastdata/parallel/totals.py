"""Sums of losses, kept on the device until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastdata.parallel.world import World

__all__ = ["Totals"]

PENDING = 64  # updates to add up at once


class Totals:
    """Sums of losses, their counts and skipped updates over all ranks since the last read."""

    def __init__(self, world: World, device: torch.device) -> None:
        self._world = world
        self._device = device
        self.dtype = torch.float32 if device.type == "mps" else torch.float64  # the widest available
        self._sums = torch.zeros(3, dtype=self.dtype, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)  # skipped since the last applied update
        self._pending = list[tuple[Tensor, Tensor | float, Tensor]]()
        self._skipped = list[Tensor]()

    def number(self, value: Tensor | float) -> Tensor:
        """Return a copy on the device, without waiting."""
        if isinstance(value, Tensor):
            return value.to(self._device, self.dtype, copy=True)
        return torch.full((), value, dtype=self.dtype, device=self._device)  # torch.tensor would copy it, and wait

    def add(self, losses: Sequence[Tensor], counts: Sequence[Tensor | float], skipped: Tensor) -> None:
        """Add the micro-batches of one update. `skipped`: whether it was skipped, bool [] on the device."""
        self._pending.extend((loss, count, skipped) for loss, count in zip(losses, counts, strict=True))
        self._skipped.append(skipped)
        if len(self._skipped) == PENDING:
            self._add_up()

    def _add_up(self) -> None:
        """Add up all pending updates at once: for the host, an operation on all of them takes as long as on one."""
        if self._skipped:
            losses, counts, dropped = zip(*self._pending, strict=True)
            values = torch.stack((torch.stack([loss.to(self._device) for loss in losses]), self._numbers(counts)))
            self._sums[:2] += torch.where(torch.stack(dropped), 0.0, values).sum(1)
            skipped = torch.stack(self._skipped)
            self._sums[2] += skipped.sum()
            applied = torch.where(skipped, 0, torch.arange(1, len(skipped) + 1, device=self._device)).max()  # place of the last
            self._in_a_row = len(skipped) - applied + torch.where(applied == 0, self._in_a_row, 0)
            self._pending.clear()
            self._skipped.clear()

    def _numbers(self, counts: Sequence[Any]) -> Tensor:
        if any(isinstance(count, Tensor) for count in counts):
            return torch.stack([self.number(count) for count in counts])
        return torch.tensor(counts, dtype=self.dtype).to(self._device, non_blocking=True)

    def read(self) -> tuple[float, float, int]:
        """Return losses, counts and skipped updates of all ranks since the last call. The host waits here."""
        self._add_up()
        losses, counts, skipped = self._world.sum(self._sums).tolist()
        self._sums.zero_()
        return losses, counts, round(skipped / self._world.size)

    def skipped_in_a_row(self) -> int:
        """Return the number of updates since the last applied one, including those read before. The host waits here."""
        self._add_up()
        return int(self._in_a_row)
