"""Checks of the arguments of `split`, for every dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["check_parts", "check_split"]

Array = np.ndarray[Any, np.dtype[Any]]


def check_split(fraction: Any, seed: Any, stratify: Any = False, *, columns: bool = False) -> None:
    """Check the arguments of `split`. columns: `stratify` may name one.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument is out of range.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.integer | np.floating):
        raise TypeError(f"fraction is {fraction!r}, but must be a number between 0 and 1, the share of the first part")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, but must lie between 0 and 1: 0.8 puts 80 % of the samples into the first part")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed is {seed!r}, but must be a whole number")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}, but must be from 0 to 2^64 - 1")
    if not isinstance(stratify, bool) and not (columns and isinstance(stratify, str)):
        column = ", or the name of a column" if columns else ""
        raise TypeError(f"stratify is {stratify!r}, but must be True, for the same fraction of every class, or False{column}")


def check_parts(fraction: float, first: Array, classes: Array | None = None) -> None:
    """Raise a ValueError if a part is empty. classes: of the samples, if the split is stratified."""
    if first.all() or not first.any():
        if classes is not None:
            most = max(np.unique(classes, return_counts=True)[1], default=0)
            raise ValueError(
                f"{fraction} of each class, rounded, leaves one part empty, as no class has more than {most} "
                f"{'sample' if most == 1 else 'samples'}: choose another fraction, or leave stratify out"
            )
        raise ValueError(f"{fraction} of {len(first)} samples, rounded, leaves one part empty: choose another fraction")
