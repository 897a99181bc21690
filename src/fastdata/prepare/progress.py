"""What a person, or a program, sees while a store is made."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

__all__ = ["MODES", "Progress"]

MODES = ("auto", "plain", "json", "off")
PLAIN_S = 5.0
JSON_S = 1.0


class Progress:
    """Shows how far a run is, on stderr. A context manager.

    Args:
        total: work in the plan.
        before: of this, done by an earlier run.
        unit: of both, "img" or "B".
        mode: one of MODES. "auto" is a bar on a terminal, else "plain" lines; "json" is one object a line; "off" is silent.
    """

    def __init__(self, total: int, before: int, mode: str, unit: str) -> None:
        if mode == "auto" and not sys.stderr.isatty():
            mode = "plain"
        self._mode, self._total, self._before, self._unit = mode, total, before, unit
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        self._said: tuple[int, int, int] | None = None
        self._sums = 0, 0, 0
        if mode == "auto":
            self._bar = tqdm(total=total, initial=before, unit=unit, unit_scale=unit == "B", smoothing=0.1, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._mode == "json" and self._said != self._sums:
            self._say_state(time.monotonic())

    def update(self, done: int, rejected: int, size: int) -> None:
        """Tell the sums of this run: work done, inputs rejected, bytes read."""
        now, self._sums = time.monotonic(), (done, rejected, size)
        if self._bar is not None:
            self._bar.update(self._before + done - self._bar.n)
            if rejected:
                self._bar.set_postfix(rejected=rejected, refresh=False)
        elif self._mode == "json" and now - self._last >= JSON_S:
            self._say_state(now)
        elif self._mode == "plain" and now - self._last >= PLAIN_S:
            state = self._state(done, rejected, size, now)
            self._say(
                f"{state['done']} of {state['total']} {'images' if self._unit == 'img' else 'bytes'}, {state['per_s']:.0f}/s, "
                f"{rejected} rejected, {state['left_s']:.0f} s left",
                now,
            )

    def _say_state(self, now: float) -> None:
        self._said = self._sums
        self._say(json.dumps(self._state(*self._sums, now)), now)

    def _state(self, done: int, rejected: int, size: int, now: float) -> dict[str, Any]:
        rate = done / max(now - self._start, 1e-9)
        left = (self._total - self._before - done) / rate if rate else float(0)
        return {
            "done": self._before + done,
            "total": self._total,
            "rejected": rejected,
            "bytes": size,
            "unit": self._unit,
            "per_s": round(rate, 1),
            "left_s": round(left, 1),
        }

    def _say(self, line: str, now: float) -> None:
        self._last = now
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
