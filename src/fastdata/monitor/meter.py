"""What a person sees of a run: one line that moves, one an epoch, and a log that a program can read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import torch
from tqdm import tqdm

from fastdata.errors import needs
from fastdata.monitor.plot import draw_log

__all__ = ["Meter", "untried"]

WAITS = 0.05  # a share of waiting below this is the model's limit, not the loader's
LOG = "log.jsonl"


@dataclass
class Span:
    """What happened since some moment: of this rank, but rows of all."""

    started: float
    rows: int = 0
    wait_s: float = 0.0
    losses: float = 0.0
    counts: float = 0.0
    skipped: int = 0
    updates: int = 0

    def record(self) -> dict[str, Any]:
        """The mean loss, updates skipped, samples a second, the same without waiting, and the share of waiting."""
        passed = max(time.perf_counter() - self.started, 1e-9)
        rates = {"samples_per_s": self.rows / passed, "samples_per_s_without_waiting": self.rows / max(passed - self.wait_s, 1e-9)}
        loss = self.losses / self.counts if self.counts else None
        return {"loss": loss, "skipped": self.skipped, **rates, "wait": self.wait_s / passed}


class Meter:
    """Counts, and tells. On ranks other than 0 it counts only.

    Args:
        folder: for the log, or None.
        shown: whether to draw the line and print epochs.
        tensorboard: write its files into the folder too.
        next_switch: what to try where the model is the bottleneck.
    """

    def __init__(self, folder: Path | None, *, shown: bool, tensorboard: bool, next_switch: str) -> None:
        self._folder, self._shown, self._next_switch = folder, shown, next_switch
        self._log: TextIO | None = None  # opened by the first record
        self._writer: Any = None
        if tensorboard and folder is not None:
            with needs("tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._writer = SummaryWriter
        self._board: Any = None
        self._bar: Any = None
        self.epoch_span, self.span = Span(time.perf_counter()), Span(time.perf_counter())

    def begin(self, epoch: int, done: int, updates: int | None, loader: Any) -> None:
        """An epoch begins, or goes on after `done` of its updates; `loader` may have `stats()` with `advice(since)`."""
        self._stats = getattr(loader, "stats", None)
        self._before = self._stats() if self._stats else None
        self.epoch_span, self.span = Span(time.perf_counter()), Span(time.perf_counter())
        if self._shown:
            self._bar = tqdm(desc=f"epoch {epoch}", initial=done, total=updates, disable=None, unit="update", dynamic_ncols=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for data."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in (self.span, self.epoch_span):
                span.wait_s += time.perf_counter() - started

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around what is not training: evaluation, and copies for a checkpoint."""
        started = time.perf_counter()
        try:
            yield
        finally:
            for span in (self.span, self.epoch_span):
                span.started += time.perf_counter() - started

    def count(self, rows: int) -> None:
        self.span.rows += rows
        self.epoch_span.rows += rows

    def updated(self) -> None:
        self.epoch_span.updates += 1
        if self._bar is not None:
            self._bar.update()

    def read(self, losses: float, counts: float, skipped: int, *, lr: float) -> dict[str, Any]:
        """Add what the device counted; returns a record of the time since the last one."""
        for span in (self.span, self.epoch_span):
            span.losses, span.counts, span.skipped = span.losses + losses, span.counts + counts, span.skipped + skipped
        record = {**self.span.record(), "lr": lr}
        self.span = Span(time.perf_counter())
        if self._bar is not None:
            self._bar.set_postfix_str(line(record), refresh=False)
        return record

    def log(self, record: dict[str, Any]) -> None:
        """One line of the log, and a point on each of TensorBoard's curves."""
        if self._folder is not None:
            if self._log is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._log = (self._folder / LOG).open("a", encoding="utf-8")
                self._board = self._writer and self._writer(str(self._folder))
            self._log.write(json.dumps({"time": time.time(), **record}) + "\n")
            self._log.flush()
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("update", "epoch"):
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["update"])

    def end(self, epoch: int, results: dict[str, float]) -> dict[str, Any]:
        """An epoch is over: one line of it, which names the bottleneck. Returns its record."""
        self._close_bar()
        record = self.epoch_span.record()
        values = ", ".join(f"{name} {value:.4g}" for name, value in results.items())
        evaluation = f"; evaluation: {values}" if values else ""
        if not self.epoch_span.updates:
            self.tell(f"epoch {epoch}: trained before this run was resumed{evaluation}.")
        else:
            self.tell(f"epoch {epoch}: {line(record)}{evaluation}. {self._advice(record['wait'])}")
        return {**record, **{f"eval_{name}": value for name, value in results.items()}}

    def _advice(self, wait: float) -> str:
        """What limits the run, and the first thing to change."""
        if wait < WAITS:
            return f"The model is the bottleneck: {self._next_switch}."
        said = self._stats().advice(self._before) if self._stats and hasattr(self._before, "advice") else "more workers"
        return f"The loader is the bottleneck: try {said}."

    def tell(self, text: str) -> None:
        if self._shown:
            tqdm.write(text)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def close(self) -> None:
        """Close the line and the log, and draw the log, if matplotlib is there."""
        self._close_bar()
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._folder is not None and self._log is not None:
            self._log.close()
            self._log = None
            if find_spec("matplotlib"):
                draw_log(self._folder / LOG, self._folder / "train.png")


def line(record: dict[str, Any]) -> str:
    """A record in words."""
    loss = "no loss" if record["loss"] is None else f"loss {record['loss']:.4g}"
    rates = f"{record['samples_per_s']:,.0f} samples/s ({record['samples_per_s_without_waiting']:,.0f} without waiting)"
    skipped = f", {record['skipped']} updates skipped: not finite" if record["skipped"] else ""
    rate = f", lr {record['lr']:.3g}" if "lr" in record else ""
    return f"{loss}, {rates}, {record['wait']:.0%} of the time waiting for data{rate}{skipped}"


def untried(device: torch.device, *, precision: str, channels_last: bool, compile: bool) -> str:
    """The first thing to change where the model is the bottleneck."""
    if device.type == "cuda" and precision == "fp32":
        return 'precision="bf16" is quicker'
    if device.type == "cuda" and not channels_last:
        return "channels_last=True is quicker for convolutions"
    return "a larger batch may be quicker" if compile else "compile=True may be quicker"
