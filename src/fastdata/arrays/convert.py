"""Whether values can become another dtype and stay what they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastdata.arrays.chunks import boxes
from fastdata.errors import CodecError

__all__ = ["check_values", "natural"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 22  # values that are looked at together


def natural(dtype: np.dtype[Any]) -> str:
    """What values are stored as if nothing else is asked for: what they are; booleans as 0 and 1."""
    return "uint8" if dtype.kind == "b" else dtype.newbyteorder("=").name


def check_values(values: Array, name: str, *, rounded: bool = False, say: str = "--dtype") -> None:
    """Raise unless every value is the same in another dtype; or, if `rounded`, the nearest float there is.

    Raises:
        CodecError: "range".
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
            else:  # back again too: int64 is compared with float64 as a float64
                bad = ~((cast == part) & (cast.astype(part.dtype) == part) | ((cast != cast) & (part != part)))
        if bad.any():
            value = part[bad][0]
            raise CodecError(
                f"the store is of {name}, which does not hold its {values.dtype} value {value} exactly: see {say}", "range"
            )


def _always(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether no value can change."""
    exact = given.kind not in "iu" or wanted.kind != "f" or math.log2(np.iinfo(given).max) <= np.finfo(wanted).nmant + 1
    return bool(np.can_cast(given, wanted, "safe")) and exact
