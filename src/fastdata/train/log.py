"""Reports of a run: counts, means of logged numbers, the files of its log, and lines on the terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from fastdata.errors import warn_user
from fastdata.train.world import World

RECORDED = ("loss", "kind", "update", "epoch", "time", "lr", "skipped", "wait", "samples_per_s", "samples_per_s_without_waiting")
LINE_S = 60.0  # most time between two lines where there is no progress bar


class RunTotals(dict[str, float]):
    """Sums since a run began: this rank's times without pauses, counts over all ranks. A record covers the time since a mark."""

    def __init__(self) -> None:
        super().__init__(seconds=-time.perf_counter(), wait_s=0.0, rows=0.0, losses=0.0, counts=0.0, skipped=0.0, updates=0.0)

    def mark(self) -> dict[str, float]:
        return {**self, "seconds": self["seconds"] + time.perf_counter()}

    def since(self, mark: Mapping[str, float]) -> dict[str, Any]:
        """Return the mean loss, skipped updates, samples/s with and without waiting, and the share of waiting."""
        new = {name: value - mark[name] for name, value in self.mark().items()}
        passed = max(new["seconds"], 1e-9)
        return {
            "loss": new["losses"] / new["counts"] if new["counts"] else None,
            "skipped": round(new["skipped"]),
            "samples_per_s": new["rows"] / passed,
            "samples_per_s_without_waiting": new["rows"] / max(passed - new["wait_s"], 1e-9),
            "wait": new["wait_s"] / passed,
        }


class Means:
    """Means by name. Sums and counts stay on their device: the host waits for a tensor only when a record is written."""

    def __init__(self) -> None:
        self._sums = dict[str, tuple[Any, Any]]()

    def add(self, name: str, value: float | Tensor, count: float | Tensor = 1) -> None:
        total, number = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = total + _wide(value), number + _wide(count)

    def read(self, world: World) -> dict[str, float]:
        """Return the means, over all ranks, of what was added since the last call. All ranks must call this together."""
        ranks = world.gather({name: (float(total), float(count)) for name, (total, count) in self._sums.items()})
        self._sums.clear()
        means = dict[str, float]()
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            totals, counts = zip(*(rank[name] for rank in ranks if name in rank), strict=True)
            means[name] = sum(totals) / sum(counts) if any(counts) else math.nan
        return means


def _wide(value: float | Tensor) -> Any:
    return value.detach().double().reshape(()) if isinstance(value, Tensor) else float(value)


class Log:
    """Appends records to log.jsonl and to TensorBoard's curves, if tensorboard is installed; without a folder it does nothing.

    A file that cannot be written, for example on a full disk, causes one warning. log.jsonl is tried again with the next record,
    TensorBoard's file is not.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._board: Any = None  # made by the first record; False: there is none
        self._warned = False

    def write(self, record: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "log.jsonl").open("a+b") as file:
                if file.tell() and file.seek(-1, 2) and file.read(1) != b"\n":
                    file.write(b"\n")  # end a line that a killed run or a full disk cut off
                file.write(json.dumps({"time": time.time(), **record}).encode() + b"\n")
            self._draw(self._folder, record)
        except OSError as error:
            self._board = False
            if not self._warned:
                warn_user(f"the log could not be written into {self._folder}: {error}. The training continues")
            self._warned = True

    def _draw(self, folder: Path, record: Mapping[str, Any]) -> None:
        if self._board is None:
            self._board = False
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(folder)
        if self._board:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("update", "epoch"):
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["update"])
            self._board.flush()

    def close(self) -> None:
        with suppress(OSError):
            if self._board:
                self._board.close()
        self._board = None


class ProgressDisplay:
    """A progress bar on a terminal, one line per epoch, and one per minute where there is no terminal. shown: True on rank 0."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self.bar = tqdm(disable=True)
        self._last_line = time.monotonic()

    def begin(self, epoch: int, start: int, updates: int | None) -> None:
        """Start an epoch, counted from 1, or continue it after `start` of its updates."""
        self.close()
        self._epoch = epoch
        hidden = None if self._shown else True  # None: without a terminal
        self.bar = tqdm(desc=f"epoch {epoch}", initial=start, total=updates, disable=hidden, unit="update", dynamic_ncols=True)

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a record beside the bar; where there is none, print it, at most once a minute."""
        self.bar.set_postfix_str(line(record), refresh=False)
        if self.bar.disable and time.monotonic() - self._last_line >= LINE_S:
            self.write_line(f"epoch {self._epoch}: {record['update']} updates, {line(record)}")

    def end_epoch(self, epoch: int, record: Mapping[str, Any], results: Mapping[str, float]) -> None:
        """Print the line of an epoch, with the results of its evaluation."""
        self.close()
        evaluation = ", ".join(f"{name} {value:.4g}" for name, value in results.items())
        self.write_line(f"epoch {epoch}: {line(record)}{'; evaluation: ' if results else ''}{evaluation}.")

    def write_line(self, text: str) -> None:
        """Print a line above the bar, and flush it for pipes. A full disk does not end the run."""
        self._last_line = time.monotonic()
        if self._shown:
            with suppress(OSError):
                tqdm.write(text)
                sys.stdout.flush()

    def close(self) -> None:
        self.bar.close()


def line(record: Mapping[str, Any]) -> str:
    """Return a record as text."""
    loss = "no loss" if record["loss"] is None else f"loss {record['loss']:.4g}"
    rates = f"{record['samples_per_s']:,.0f} samples/s ({record['samples_per_s_without_waiting']:,.0f} without waiting)"
    rate = f", lr {record['lr']:.3g}" if "lr" in record else ""
    skipped = f", skipped updates: {record['skipped']} (gradients not finite)" if record["skipped"] else ""
    others = "".join(f", {name} {value:.4g}" for name, value in record.items() if name not in RECORDED)
    return f"{loss}, {rates}, {record['wait']:.0%} of the time waiting for data{rate}{skipped}{others}"
