"""Read the log of a run: records by update, curves, and their moving averages."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["NAME", "RATES", "SMOOTHED", "History", "Record", "points_of", "smoothed"]

NAME = "log.jsonl"
Record = dict[str, Any]

FIELDS = {"time", "kind", "update", "epoch", "ema", "loss", "skipped", "lr", "resumed_at"}
RATES = {"samples_per_s", "samples_per_s_without_waiting", "wait"}
SMOOTHED = 30  # the moving average of the loss is over 1/30 of the points


@dataclass(frozen=True)
class History:
    """The records of a run, each kind by update.

    Attributes:
        train: those of every few updates.
        evaluations: those of evaluations.
        epochs: those of the ends of epochs.
        damaged: how many lines are no records, such as one that a killed run has left half.
    """

    train: list[Record]
    evaluations: list[Record]
    epochs: list[Record]
    damaged: int

    @classmethod
    def read(cls, log: Path) -> History:
        """Read a log. A killed run may have logged an update twice: the later record wins."""
        found: dict[str, dict[int, Record]] = {"train": {}, "eval": {}, "epoch": {}}
        damaged = 0
        for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(text)
                of, update = found.get(record["kind"]), int(record["update"])
            except (ValueError, TypeError, KeyError):
                damaged += 1
                continue
            if of is not None:
                of[update] = of.get(update, {}) | record
        train, evaluations, epochs = ([of[update] for update in sorted(of)] for of in found.values())
        return cls(train, evaluations, epochs, damaged)

    @property
    def metrics(self) -> list[str]:
        """The names of metrics and logged numbers."""
        return sorted({name for record in (*self.train, *self.evaluations) for name in record} - FIELDS - RATES)

    @property
    def updates(self) -> int:
        """The last update."""
        return max((record["update"] for records in (self.train, self.evaluations, self.epochs) for record in records), default=0)


def points_of(records: list[Record], name: str, scale: float = 1) -> list[tuple[int, float]]:
    """Return (update, value) where a record has a finite number of this name."""
    values = ((record["update"], record.get(name)) for record in records)
    return [(update, value * scale) for update, value in values if isinstance(value, int | float) and math.isfinite(value)]


def smoothed(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return an exponential moving average, corrected for the bias at its beginning."""
    keep = 1 - SMOOTHED / len(points) if len(points) > 2 * SMOOTHED else 0.5
    total, weight, found = 0.0, 0.0, list[tuple[int, float]]()
    for update, value in points:
        total, weight = keep * total + value, keep * weight + 1
        found.append((update, total / weight))
    return found
