"""The interface of a Trainer to its parts, which cannot import the Trainer itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from fastdata.monitor.best import Best
from fastdata.optim.ema import EMA
from fastdata.optim.schedule import Schedule
from fastdata.parallel.totals import Totals
from fastdata.parallel.world import World

__all__ = ["Training"]


class Training(Protocol):
    """The attributes and methods that the parts use; `fastdata.Trainer` documents them."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    ema: EMA | None
    world: World
    best: Best
    totals: Totals
    records: Any  # a Records, which imports this file
    dir: Path | None
    accumulate: int
    save_every: int | None
    results: dict[str, float]
    update: int
    epoch: int
    epoch_open: bool
    validated: int
    stopping: bool
    profiling: bool

    @property
    def saves(self) -> bool: ...

    def resume(self) -> bool: ...

    def steps(self, train: Iterable[Any]) -> Iterator[int]: ...

    def used(self, train: Any) -> int: ...

    def check_finite(self, *, over: bool = False) -> None: ...

    def validate(self, val: Iterable[Any]) -> dict[str, float]: ...

    def end_epoch(self) -> None: ...

    def save(self) -> None: ...

    def close(self) -> None: ...
