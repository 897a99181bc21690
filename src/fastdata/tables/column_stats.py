"""What a pass over a column sees, and the narrowest dtype that holds all of it exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.tables.arrow import missing_of, plain, used_names, values_of
from fastdata.tables.columns import FLOATS, INTEGERS, Column

__all__ = ["MOST_NAMES", "Seen", "exact", "narrowest", "order_names"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST_NAMES = 1_000_000  # of a column; they stand in the manifest


def narrowest(low: int, high: int) -> str:
    """The smallest integer dtype from low to high; of two, the one that torch computes with.

    Raises:
        ValueError: there is none.
    """
    for name in INTEGERS:
        if np.iinfo(name).min <= low and high <= np.iinfo(name).max:
            return name
    raise ValueError(f"whole numbers from {low} to {high}, which take more than 64 bits")


def exact(values: Array, dtype: str) -> bool:
    """Whether floats come back from a narrower dtype as they are: infinities, -0.0 and NaN too (but not a NaN's payload)."""
    with np.errstate(over="ignore", invalid="ignore"):
        back = values.astype(dtype).astype(values.dtype)
    return bool(((back == values) | (values != values)).all())  # a cast keeps the sign of zero


def order_names(names: set[str]) -> tuple[str, ...]:
    """Sorted; as numbers where all are whole numbers."""
    digits = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name))) if digits else tuple(sorted(names))


class Seen:
    """What the values of one column are like, batch after batch.

    Attributes:
        name, column: all that is known before the first value.
        rows, missing: so many.
        low, high: of whole numbers.
        floats: the dtypes, narrowest first, that hold all values so far.
        names: all different ones.
    """

    def __init__(self, column: Column) -> None:
        self.name, self.column = column.name, column
        self.rows = self.missing = 0
        self.low, self.high = 0, 0
        self.floats = list(FLOATS)
        self.names: set[str] = set()

    def add(self, array: Any) -> None:
        array = plain(array, self.column)
        missing = missing_of(array)
        self.rows += len(array)
        self.missing += 0 if missing is None else int(missing.sum())
        if self.column.kind == "category":
            self._add_names(used_names(array))
        elif self.column.kind not in ("bool", "empty") and len(array):
            self._add_values(values_of(array, self.column, missing))

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
        """The column with its dtype and names."""
        kind, names = self.column.kind, order_names(self.names)
        if kind == "category":
            dtype = narrowest(0, len(names))  # one more than the names: missing
        elif kind in ("integer", "decimal"):
            try:
                dtype = narrowest(self.low, self.high)
            except ValueError as error:
                raise PrepError(f"column {self.name!r} holds {error}; leave it out (--drop {self.name})") from None
        else:
            dtype = {"float": self.floats[0], "bool": "bool", "empty": "uint8", "date": "int32"}.get(kind, "int64")
        return replace(self.column, dtype=dtype, names=names, missing=self.missing if self.missing else None)
