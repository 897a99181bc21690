"""The lines of a run: a progress bar, one line per epoch, and one per minute where there is no bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from fastdata.monitor.logged import Sums, added, means

__all__ = ["Meter"]

LINE_S = 60.0  # most time between two lines where there is no progress bar


@dataclass
class Span:
    """Counts since `started`: of this rank, except `rows`, which are of all ranks."""

    started: float = field(default_factory=time.perf_counter)
    rows: int = 0
    wait_s: float = 0.0
    losses: float = 0.0
    counts: float = 0.0
    skipped: int = 0
    updates: int = 0
    logged: Sums = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the mean loss, skipped updates, samples/s with and without waiting, the share of waiting, and means of logs."""
        passed = max(time.perf_counter() - self.started, 1e-9)
        rates = {"samples_per_s": self.rows / passed, "samples_per_s_without_waiting": self.rows / max(passed - self.wait_s, 1e-9)}
        loss = self.losses / self.counts if self.counts else None
        return {"loss": loss, "skipped": self.skipped, **rates, "wait": self.wait_s / passed, **means(self.logged)}


class Meter:
    """Counts what a run does and prints its lines.

    Args:
        shown: whether to draw the bar and print lines; False on ranks other than 0.

    Attributes:
        resumed_at: the update at which this process resumed within the epoch; None: it trains the whole epoch.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        self._last_line = time.monotonic()
        self._place = ""
        self.resumed_at: int | None = None
        self.epoch_span, self.span = Span(), Span()

    @property
    def _spans(self) -> tuple[Span, ...]:
        return self.span, self.epoch_span

    def begin(self, epoch: int, done: int, updates: int | None) -> None:
        """Start an epoch, counted from 0, or continue it after `done` of its updates."""
        self.epoch_span, self.span = Span(), Span()
        self._done = done
        self._updates = updates
        self._place = f"epoch {epoch + 1}"
        if not done:
            self.resumed_at = None
        if self._shown:
            self._bar = tqdm(desc=self._place, initial=done, total=updates, disable=None, unit="update", dynamic_ncols=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the enclosed code as waiting for data."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in self._spans:
                span.wait_s += time.perf_counter() - started

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the enclosed code: evaluation, copies for a checkpoint."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in self._spans:
                span.started += time.perf_counter() - started

    def count(self, rows: int) -> None:
        for span in self._spans:
            span.rows += rows

    def updated(self) -> None:
        self.epoch_span.updates += 1
        self._done += 1
        if self._bar is not None:
            self._bar.update()

    def read(self, losses: float, counts: float, skipped: int, logged: Sums, *, lr: float) -> dict[str, Any]:
        """Add what the device counted, and return a record of the time since the last record.

        Where there is no progress bar, it is printed, at most once a minute.
        """
        for span in self._spans:
            span.losses += losses
            span.counts += counts
            span.skipped += skipped
            span.logged = added(span.logged, logged)
        record = {**self.span.record(), "lr": lr}
        self.span = Span()
        if self._bar is not None:
            self._bar.set_postfix_str(line(record), refresh=False)
            if self._bar.disable and time.monotonic() - self._last_line >= LINE_S:
                total = "" if self._updates is None else f" of {self._updates}"
                self.tell(f"{self._place}{self._resumed()}: {self._done}{total} updates, {line(record)}")
        return record

    def add(self, logged: Sums) -> None:
        """Add what was logged after the last record of the epoch."""
        self.epoch_span.logged = added(self.epoch_span.logged, logged)

    def _resumed(self) -> str:
        return "" if self.resumed_at is None else f", resumed at update {self.resumed_at}"

    def end(self, epoch: int, results: dict[str, float]) -> dict[str, Any]:
        """End an epoch: print its line, and return its record."""
        self.close()
        record = self.epoch_span.record()
        values = ", ".join(f"{name} {value:.4g}" for name, value in results.items())
        evaluation = f"; evaluation: {values}" if values else ""
        if not self.epoch_span.updates:
            self.tell(f"epoch {epoch}: trained before this run was resumed{evaluation}.")
        else:
            self.tell(f"epoch {epoch}{self._resumed()}: {line(record)}{evaluation}.")
        if self.resumed_at is not None:
            record["resumed_at"] = self.resumed_at
            self.resumed_at = None
        return {**record, **{f"eval_{name}": value for name, value in results.items()}}

    def tell(self, text: str) -> None:
        """Print a line above the bar, and flush it for pipes. A line for which a disk has no room does not end the run."""
        self._last_line = time.monotonic()
        if self._shown:
            with suppress(OSError):
                tqdm.write(text)
                sys.stdout.flush()

    def close(self) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None


KNOWN = ("loss", "skipped", "samples_per_s", "samples_per_s_without_waiting", "wait", "lr")


def line(record: dict[str, Any]) -> str:
    """Return a record as text."""
    loss = "no loss" if record["loss"] is None else f"loss {record['loss']:.4g}"
    logged = "".join(f", {name} {value:.4g}" for name, value in record.items() if name not in KNOWN)
    rates = f"{record['samples_per_s']:,.0f} samples/s ({record['samples_per_s_without_waiting']:,.0f} without waiting)"
    skipped = f", {record['skipped']} updates skipped: not finite" if record["skipped"] else ""
    rate = f", lr {record['lr']:.3g}" if "lr" in record else ""
    return f"{loss}{logged}, {rates}, {record['wait']:.0%} of the time waiting for data{rate}{skipped}"
