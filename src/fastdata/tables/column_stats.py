"""Collect statistics in a pass over a column, to find the narrowest dtype that holds it exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.tables.arrow import missing_of, plain, used_names, values_of
from fastdata.tables.columns import FLOATS, INTEGERS, Column

__all__ = ["ColumnStats", "exact", "narrowest"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST_NAMES = 1_000_000  # distinct names of a column; the manifest holds them


def narrowest(low: int, high: int) -> str:
    """Return the smallest integer dtype that holds low to high; of two, the one that torch computes with.

    Raises:
        ValueError: if there is none.
    """
    for name in INTEGERS:
        if np.iinfo(name).min <= low and high <= np.iinfo(name).max:
            return name
    raise ValueError(f"whole numbers from {low} to {high}, which take more than 64 bits")


def exact(values: Array, dtype: str) -> bool:
    """Return whether a narrower dtype holds floats exactly, infinities, -0.0 and NaN included (but not a NaN's payload)."""
    with np.errstate(over="ignore", invalid="ignore"):
        back = values.astype(dtype).astype(values.dtype)
    return bool(((back == values) | (values != values)).all())  # a cast keeps the sign of zero


def order_names(names: set[str]) -> tuple[str, ...]:
    """Sort names; as numbers if all are whole numbers."""
    digits = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name))) if digits else tuple(sorted(names))


class ColumnStats:
    """Statistics of a column, updated batch by batch.

    Attributes:
        column: what is known before the first value.
        missing: number of missing values.
        low, high: range of whole numbers, 0 included.
        floats: dtypes that hold all floats so far, narrowest first.
        names: the distinct names.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing = 0
        self.low = self.high = 0
        self.floats = list(FLOATS)
        self.names: set[str] = set()

    def add(self, array: Any) -> None:
        array = plain(array, self.column)
        self.missing += array.null_count
        if self.column.kind == "category":
            self._add_names(used_names(array))
        elif self.column.kind not in ("bool", "empty") and len(array):
            self._add_values(values_of(array, self.column, missing_of(array)))

    def _add_names(self, names: list[str]) -> None:
        self.names.update(names)
        if len(self.names) > MOST_NAMES:
            raise PrepError(
                f"column {self.column.name!r} holds more than {MOST_NAMES:,} different names, such as {min(names)!r:.60}: "
                f"leave it out (--drop {self.column.name})"
            )

    def _add_values(self, values: Array) -> None:
        if values.dtype.kind in "iu":
            self.low, self.high = min(self.low, int(values.min())), max(self.high, int(values.max()))
        else:
            while len(self.floats) > 1 and not exact(values, self.floats[0]):
                del self.floats[0]

    def result(self) -> Column:
        """Return the column with its dtype and names."""
        name, kind, names = self.column.name, self.column.kind, order_names(self.names)
        if kind == "category":
            dtype = narrowest(0, len(names))  # the largest code means missing
        elif kind in ("integer", "decimal"):
            try:
                dtype = narrowest(self.low, self.high)
            except ValueError as error:
                raise PrepError(f"column {name!r} holds {error}; leave it out (--drop {name})") from None
        else:
            dtype = {"float": self.floats[0], "bool": "bool", "empty": "uint8", "date": "int32"}.get(kind, "int64")
        return replace(self.column, dtype=dtype, names=names, missing=self.missing or None)
