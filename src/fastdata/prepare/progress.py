"""Show the progress of a run: a bar on a terminal, a line every few seconds elsewhere, as in the log of a job."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

__all__ = ["progress_bar"]

LINE_S = 5.0


class _Lines:
    """Writes each state of a bar as a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(text.strip() + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int, before: int, unit: str, *, show: bool) -> tqdm[Any]:
    """Return a bar on stderr. total: the work of the plan. before: the work that earlier runs have done. unit: "img" or "B"."""
    lines = not sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=before,
        unit=unit,
        unit_scale=unit == "B",
        smoothing=0.1,
        dynamic_ncols=not lines,
        mininterval=LINE_S if lines else 0.1,
        file=_Lines() if lines else None,
        disable=not show,
    )
