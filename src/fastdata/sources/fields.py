"""Values that tables have for each input, as the columns of a store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.store.column import TEXTS, Column

__all__ = ["Field", "parse_field"]

FIELD = re.compile(r"(?P<name>.+?)(:(?P<type>[a-z]+[0-9]*)(?P<many>\[(?P<length>[0-9]*)\])?)?")
MISSING = "its cell is empty: fill it, leave the row out, or store {name} as {name}:float32, where empty cells are NaN"


@dataclass(frozen=True)
class Field:
    """A value of `--fields`: the name of a column, and what to store it as.

    Attributes:
        column: None, if the type is to be inferred from the values.
    """

    name: str
    column: Column | None = None

    def typed(self, texts: Sequence[str], where: Callable[[int], str]) -> tuple[Column, list[Any]]:
        """Return the column of these cells, and its values.

        Args:
            texts: the cells of all rows.
            where: describes a row, for messages.

        Raises:
            PrepError: a cell does not hold a value of the column's type.
        """
        column = self.column or _column(self.name, _infer(texts))
        values = []
        for row, text in enumerate(texts):
            try:
                values.append(_value(column, text))
            except (ValueError, OverflowError, RecursionError) as error:
                raise PrepError(f"--fields {self.name}: {where(row)}: {error}") from None
        return column, values


def parse_field(text: str) -> Field:
    """Parse NAME, NAME:TYPE, NAME:TYPE[] for lists, or NAME:TYPE[LENGTH] for arrays.

    Raises:
        PrepError: there is no such type, or no column can have this name.
    """
    found = FIELD.fullmatch(text)
    if found is None:
        raise PrepError(f"--fields {text}: give NAME or NAME:TYPE, such as caption, score:float32 or embedding:float32[512]")
    name, length = found["name"], found["length"]
    if found["type"] is None:
        return Field(name)
    return Field(name, _column(name, found["type"], (int(length),) if length else (), many=length == ""))


def _column(name: str, type: str, shape: tuple[int, ...] = (), *, many: bool = False) -> Column:
    try:
        return Column(name, type, shape, many)
    except ValueError as error:
        raise PrepError(f"--fields {name}: {error}") from None


def _infer(texts: Sequence[str]) -> str:
    """Return int64 or float32, if all cells are such numbers, else text."""
    if all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in texts):
        return "int64"
    try:
        numbers = [float(text) for text in texts if text]
    except ValueError:
        return "text"
    return "float32" if numbers else "text"


def _value(column: Column, text: str) -> Any:
    if column.type in TEXTS:
        return json.loads(text or "null") if column.type == "json" else text
    if not column.shape and not column.many:
        return _number(column, text)
    items = json.loads(text)
    if not isinstance(items, list):
        raise ValueError(f"{text!r:.60} is not a list, such as [1, 2]")
    if column.shape and len(items) != column.shape[0]:
        raise ValueError(f"{len(items)} numbers, but {column.name} holds {column.shape[0]} for each sample")
    return [_number(column, json.dumps(item)) for item in items]


def _number(column: Column, text: str) -> Any:
    """Return a number that the column's dtype holds: whole numbers exactly, others rounded."""
    dtype = column.dtype
    if dtype.kind == "f":
        value = float(text) if text else float("nan")
        if np.isfinite(value) and abs(value) > float(np.finfo(dtype).max):
            raise ValueError(f"{text} is too large for {column.type}")
        return value
    if not text:
        raise ValueError(MISSING.format(name=column.name))
    if dtype.kind == "b":
        if text.lower() not in ("true", "false", "0", "1"):
            raise ValueError(f"{text!r:.60} is not true, false, 0 or 1")
        return text.lower() in ("true", "1")
    number = int(text)
    if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ValueError(f"{text} does not fit {column.type}")
    return number
