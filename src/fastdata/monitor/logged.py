"""Numbers that a user logs, summed by name until the next line of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fastdata.errors import FastDataError
from fastdata.monitor.metrics import RESERVED

__all__ = ["NOTHING", "Logged", "Sums", "added", "means"]

Sums = dict[str, tuple[float, float]]  # by name: the sum of the numbers, and their count
TAKEN = {*RESERVED, "lr", "skipped", "wait", "samples_per_s", "samples_per_s_without_waiting", "resumed_at"}
NOTHING = "nothing"  # for rows that only fill up a batch


class Logged:
    """Sums of numbers by name, kept on their device: the host waits for a tensor only when a line is written.

    Args:
        metrics: names of the metrics, which `trainer.log` must not use.

    Attributes:
        kind: the record for what is logged now: "train", "eval" or "epoch". NOTHING drops it; None makes it an error.
    """

    def __init__(self, metrics: tuple[str, ...]) -> None:
        self._taken = TAKEN | {*metrics}
        self._sums: dict[str, dict[str, tuple[Any, int]]] = {"train": {}, "eval": {}, "epoch": {}}
        self.kind: str | None = None

    @contextmanager
    def into(self, kind: str | None) -> Iterator[None]:
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def add(self, name: str, value: Any) -> None:
        """See `Trainer.log`."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"log takes a name and a number; the name is {name!r}")
        if name in self._taken or name.partition("/")[0] in self._taken or name.startswith("eval_"):
            raise ValueError(f"log({name!r}, ...): the log uses this name itself, or a metric has it: choose another")
        if self.kind is None:
            raise FastDataError(
                f"log({name!r}, ...) was called outside of a run: call it in loss_fn, in the hooks step, epoch or eval, or between "
                "the updates of trainer.steps()"
            )
        number = _number(name, value)
        if self.kind != NOTHING:
            sums = self._sums[self.kind]
            total, count = sums.get(name, (0.0, 0))
            sums[name] = total + number, count + 1

    def read(self, kind: str, world: Any) -> Sums:
        """Return the sums since the last call, over all ranks. The host waits here. All ranks must call it together."""
        mine = {name: (float(total), count) for name, (total, count) in self._sums[kind].items()}
        self._sums[kind] = {}
        return added(*world.gather(mine))


def added(*parts: Sums) -> Sums:
    """Add up sums by name."""
    found: Sums = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = found.get(name, (0.0, 0))
            found[name] = before[0] + total, before[1] + count
    return found


def means(sums: Sums) -> dict[str, float]:
    return {name: total / count for name, (total, count) in sums.items()}


def _number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and not value.is_complex():
        if value.numel() != 1:
            raise ValueError(f"log({name!r}, ...) takes one number, but got a tensor {list(value.shape)}: log its mean() instead")
        wide = torch.float32 if value.device.type == "mps" else torch.float64
        return value.detach().to(wide).reshape(())
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"log({name!r}, ...) takes a number or a tensor of one, but got a {type(value).__name__}")
