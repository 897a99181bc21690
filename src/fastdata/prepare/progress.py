"""Show the progress of a run, to people or to programs."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

__all__ = ["Progress", "check_mode"]

MODES = ("auto", "plain", "json", "off")
INTERVALS_S = {"plain": 5.0, "json": 1.0}


def check_mode(mode: str) -> None:
    """Raise ValueError if there is no such way to show progress."""
    if mode not in MODES:
        raise ValueError(f"--progress is {mode}, but must be one of {', '.join(MODES)}")


class Progress:
    """Shows progress on stderr. A context manager.

    Args:
        total: the work in the plan.
        before: the work that earlier runs have done.
        mode: one of MODES. "auto" shows a bar on a terminal, else "plain" lines; "json" prints one object per line.
        unit: the unit of both, "img" or "B".
    """

    def __init__(self, total: int, before: int, mode: str, unit: str) -> None:
        if mode == "auto" and not sys.stderr.isatty():
            mode = "plain"
        self._mode = mode
        self._total = total
        self._before = before
        self._unit = unit
        self._start = self._last = time.monotonic()
        self._sums = 0, 0, 0  # work done, inputs rejected, bytes read
        self._printed: tuple[int, int, int] | None = None
        self._bar: Any = None
        if mode == "auto":
            self._bar = tqdm(total=total, initial=before, unit=unit, unit_scale=unit == "B", smoothing=0.1, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._mode == "json" and self._printed != self._sums:
            self._print()

    def update(self, done: int, rejected: int, size: int) -> None:
        """Set the sums of this run: work done, inputs rejected, bytes read."""
        self._sums = done, rejected, size
        if self._bar is not None:
            self._bar.update(self._before + done - self._bar.n)
            if rejected:
                self._bar.set_postfix(rejected=rejected, refresh=False)
        elif self._mode != "off" and time.monotonic() - self._last >= INTERVALS_S[self._mode]:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        self._printed = done, rejected, size = self._sums
        rate = done / max(self._last - self._start, 1e-9)
        left_s = (self._total - self._before - done) / rate if rate else 0.0
        state = {
            "done": self._before + done,
            "total": self._total,
            "rejected": rejected,
            "bytes": size,
            "unit": self._unit,
            "per_s": round(rate, 1),
            "left_s": round(left_s, 1),
        }
        things = "images" if self._unit == "img" else "bytes"
        line = f"{state['done']} of {self._total} {things}, {rate:.0f}/s, {rejected} rejected, {left_s:.0f} s left"
        sys.stderr.write((json.dumps(state) if self._mode == "json" else line) + "\n")
        sys.stderr.flush()
