"""What a person sees of a run: one line that moves, one an epoch, and in a job's log one a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from fastdata.monitor.bottleneck import Bottleneck
from fastdata.monitor.logged import Sums, added, means

__all__ = ["Meter"]

LINE_S = 60.0  # between two lines, at most, where no line moves


@dataclass
class Span:
    """What happened since some moment: of this rank, but rows of all."""

    started: float = field(default_factory=time.perf_counter)
    rows: int = 0
    wait_s: float = 0.0
    losses: float = 0.0
    counts: float = 0.0
    skipped: int = 0
    updates: int = 0
    logged: Sums = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The mean loss, updates skipped, samples a second, the same without waiting, the share of waiting, and what was logged."""
        passed = max(time.perf_counter() - self.started, 1e-9)
        rates = {"samples_per_s": self.rows / passed, "samples_per_s_without_waiting": self.rows / max(passed - self.wait_s, 1e-9)}
        loss = self.losses / self.counts if self.counts else None
        return {"loss": loss, "skipped": self.skipped, **rates, "wait": self.wait_s / passed, **means(self.logged)}


class Meter:
    """Counts, and tells. On ranks other than 0 it counts only.

    Args:
        shown: whether to draw the line and print epochs.
        switch: what to try where the model is the bottleneck.

    Attributes:
        resumed_at: the update at which this process went on in the middle of the epoch; None: it trains the whole epoch.
    """

    def __init__(self, *, shown: bool, switch: str) -> None:
        self._shown, self._bottleneck = shown, Bottleneck(switch)
        self._bar: Any = None
        self._told = time.monotonic()
        self._place = ""
        self._known: dict[str, Any] = {}  # of the last record
        self.resumed_at: int | None = None
        self._start()

    def _start(self) -> None:
        self.epoch_span, self.span, self._line_span = Span(), Span(), Span()

    @property
    def _spans(self) -> tuple[Span, ...]:
        return self.span, self.epoch_span, self._line_span

    def begin(self, epoch: int, done: int, updates: int | None, loader: Any) -> None:
        """An epoch, the first is 0, begins, or goes on after `done` of its updates."""
        self._bottleneck.begin(loader)
        self._start()
        self._done, self._updates, self._place = done, updates, f"epoch {epoch + 1}"
        if not done:
            self.resumed_at = None
        if self._shown:
            self._bar = tqdm(desc=self._place, initial=done, total=updates, disable=None, unit="update", dynamic_ncols=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for data."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in self._spans:
                span.wait_s += time.perf_counter() - started

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around what is not training: evaluation, copies for a checkpoint, and pictures."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in self._spans:
                span.started += time.perf_counter() - started

    def count(self, rows: int) -> None:
        for span in self._spans:
            span.rows += rows
        self._line_each_minute()

    def updated(self) -> None:
        self.epoch_span.updates += 1
        self._done += 1
        if self._bar is not None:
            self._bar.update()
        self._line_each_minute()

    def read(self, losses: float, counts: float, skipped: int, logged: Sums, *, lr: float) -> dict[str, Any]:
        """Add what the device counted; returns a record of the time since the last one."""
        for span in self._spans:
            span.losses, span.counts, span.skipped = span.losses + losses, span.counts + counts, span.skipped + skipped
            span.logged = added(span.logged, logged)
        record = {**self.span.record(), "lr": lr}
        self._known = {"loss": record["loss"], "lr": lr}
        self.span = Span()
        if self._bar is not None:
            self._bar.set_postfix_str(line(record), refresh=False)
        return record

    def add(self, logged: Sums) -> None:
        """Add what was logged after the last record of the epoch."""
        self.epoch_span.logged = added(self.epoch_span.logged, logged)

    def evaluating(self, batches: int) -> None:
        """So many batches of an evaluation were used."""
        self._line_each_minute(f"{batches} batches evaluated")

    def _line_each_minute(self, text: str = "") -> None:
        """Where no line moves: how far it is."""
        if not self._shown or (self._bar is not None and not self._bar.disable) or time.monotonic() - self._told < LINE_S:
            return
        if not text:
            total = "" if self._updates is None else f" of {self._updates}"
            text = f"{self._done}{total} updates, {line(self._line_span.record() | self._known)}"
            self._line_span = Span()
        self.tell(f"{self._place}{self._resumed()}: {text}")

    def _resumed(self) -> str:
        return "" if self.resumed_at is None else f", resumed at update {self.resumed_at}"

    def end(self, epoch: int, results: dict[str, float]) -> dict[str, Any]:
        """An epoch is over: one line of it, which names the bottleneck where that is news. Returns its record."""
        self._close_bar()
        record = self.epoch_span.record()
        values = ", ".join(f"{name} {value:.4g}" for name, value in results.items())
        evaluation = f"; evaluation: {values}" if values else ""
        if not self.epoch_span.updates:
            self.tell(f"epoch {epoch}: trained before this run was resumed{evaluation}.")
        else:
            limit = self._bottleneck.end(record["wait"])
            self.tell(f"epoch {epoch}{self._resumed()}: {line(record)}{evaluation}.{limit and ' '}{limit}")
        if self.resumed_at is not None:
            record["resumed_at"], self.resumed_at = self.resumed_at, None
        return {**record, **{f"eval_{name}": value for name, value in results.items()}}

    def tell(self, text: str) -> None:
        """A line for whoever looks, also through a pipe."""
        self._told = time.monotonic()
        if self._shown:
            tqdm.write(text)
            sys.stdout.flush()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def close(self) -> None:
        """Close the line that moves."""
        self._close_bar()


KNOWN = ("loss", "skipped", "samples_per_s", "samples_per_s_without_waiting", "wait", "lr")


def line(record: dict[str, Any]) -> str:
    """A record in words."""
    loss = "no loss" if record["loss"] is None else f"loss {record['loss']:.4g}"
    logged = "".join(f", {name} {value:.4g}" for name, value in record.items() if name not in KNOWN)
    rates = f"{record['samples_per_s']:,.0f} samples/s ({record['samples_per_s_without_waiting']:,.0f} without waiting)"
    skipped = f", {record['skipped']} updates skipped: not finite" if record["skipped"] else ""
    rate = f", lr {record['lr']:.3g}" if "lr" in record else ""
    return f"{loss}{logged}, {rates}, {record['wait']:.0%} of the time waiting for data{rate}{skipped}"
