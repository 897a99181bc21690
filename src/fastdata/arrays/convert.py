"""Check whether values can change their dtype exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.errors import CodecError

__all__ = ["check_values"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 22  # values that are checked at once


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
    inexact = dtype.kind == "f" and values.dtype.kind in "iu" and values.dtype.itemsize == 8  # which numpy calls safe
    if np.can_cast(values.dtype, dtype, "safe") and not inexact:
        return
    for part in np.array_split(values, max(1, min(len(values), values.size // BLOCK))):
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
