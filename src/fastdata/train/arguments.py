"""Checks of a Trainer's arguments."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

__all__ = ["check_arguments", "check_counts"]


def check_arguments(*, clip_norm: float | None, resume: Any, dir: Any) -> None:
    """Raise a ValueError for values that would run, but not do what they say."""
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise ValueError(
            f"clip_norm is {clip_norm}, which would leave nothing or all of each gradient: give a number above 0, or None"
        )
    if resume not in (True, False, "require") or (resume == "require" and dir is None):
        raise ValueError(f"resume is {resume!r} and dir is {dir}; resume must be True, False, or 'require', which needs a dir")


def check_counts(**counts: int | None) -> None:
    """Raise a ValueError for anything but None or a whole number of at least 1."""
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < 1):
            raise ValueError(f"{name} is {count!r}, but must be a whole number from 1 on, or left out")
