"""Check whether values can change their dtype exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastdata.arrays.chunks import boxes
from fastdata.errors import CodecError

__all__ = ["check_values", "default_dtype"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 22  # values that are checked at once


def default_dtype(dtype: np.dtype[Any]) -> str:
    """Return the dtype that values are stored in by default: their own, but uint8 for booleans."""
    return "uint8" if dtype.kind == "b" else dtype.newbyteorder("=").name


def check_values(values: Array, name: str, *, rounded: bool = False, say: str = "--dtype") -> None:
    """Check that another dtype holds every value exactly.

    Args:
        values: the values.
        name: the other dtype.
        rounded: let floats be rounded to it, as long as they stay finite.
        say: the option that the message names.

    Raises:
        CodecError: "range", if it does not.
    """
    dtype = np.dtype(name)
    if _always(values.dtype, dtype):
        return
    step = max(1, BLOCK * values.shape[0] // values.size)
    for box in boxes(values.shape, (step, *values.shape[1:])):
        part = values[box]
        with np.errstate(all="ignore"):
            cast = part.astype(dtype)
            if rounded and dtype.kind == "f":
                bad = np.isinf(cast) & ~np.isinf(part)
            else:  # cast back too, since numpy compares int64 with float64 as float64
                bad = ~((cast == part) & (cast.astype(part.dtype) == part) | ((cast != cast) & (part != part)))
        if bad.any():
            value = part[bad][0]
            raise CodecError(
                f"the store is of {name}, which does not hold its {values.dtype} value {value} exactly: see {say}", "range"
            )


def _always(old: np.dtype[Any], new: np.dtype[Any]) -> bool:
    """Return whether no value of the old dtype can change."""
    exact = old.kind not in "iu" or new.kind != "f" or math.log2(np.iinfo(old).max) <= np.finfo(new).nmant + 1
    return bool(np.can_cast(old, new, "safe")) and exact
