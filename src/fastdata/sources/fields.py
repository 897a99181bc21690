"""`--fields`: which values become columns of a store, and as which type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastdata.errors import PrepError
from fastdata.sources.packed import Packed
from fastdata.sources.values import infer_text, infer_values, listed, parse_text
from fastdata.store.column import Column

__all__ = ["Field", "field_error", "make_column", "parse_fields"]

FIELD = re.compile(
    r"(?P<name>[^=].*?)(=\.?(?P<ending>[^=:/]+))?(:(?P<type>[a-z]+[0-9]*)(?P<brackets>\[(?P<shape>[0-9]+(,[0-9]+)*)?\])?)?"
)
LABEL = "label"  # datasets emit the image's label under this name


@dataclass(frozen=True)
class Field:
    """A value of `--fields`: the name of a column, where its values are, and what to store them as.

    Attributes:
        column: None, if the type is to be inferred from the values.
        ending: of the files, or members of a tar, that hold the values; "": they are a column of a table, or of an archive.
    """

    name: str
    column: Column | None = None
    ending: str = ""

    def __str__(self) -> str:
        """What was typed, without the type."""
        return f"{self.name}={self.ending}" if self.ending else self.name

    def shaped(self, declared: Column) -> Column:
        """Return the column to store, given the one that suits the values: lists of arrays take the arrays' shape from there."""
        if self.column is None:
            return declared
        shape = declared.shape if declared.many else declared.shape[1:]
        return replace(self.column, shape=shape) if self.column.many else self.column

    def typed(
        self, cells: Sequence[Any], where: Callable[[int], str], *, texts: bool, declared: Column | None = None
    ) -> tuple[Column, Sequence[Any]]:
        """Return the column of these cells, and its values as JSON.

        Args:
            cells: of all rows.
            where: describes a row, for messages.
            texts: whether the cells are text, as in a CSV, or values, as in JSON.
            declared: the column that suits the values, if the table says it.

        Raises:
            PrepError: a cell does not hold a value of the column's type.
        """
        if self.column is not None and not self.column.many:
            column = self.column
        elif texts:
            column = self.column or make_column(self.name, infer_text(cells))
        else:
            column = self.shaped(declared or infer_values(self.name, cells))
        if column.type == "bytes" and not texts:
            raise field_error(self, "bytes come from files or members, as NAME=ENDING, or from a Parquet that holds the images")
        values = Packed[Any]()
        for row, cell in enumerate(cells):
            try:
                values.append(listed(column, parse_text(column, cell) if texts else cell))
            except (ValueError, OverflowError, RecursionError) as error:
                raise field_error(self, f"{where(row)}: {error}") from None
        return column, values


def field_error(field: Field | str, why: str) -> PrepError:
    """Make the error on a value of `--fields`."""
    return PrepError(f"--fields {field}: {why}")


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse the values of `--fields`.

    Each is NAME or NAME=ENDING, then perhaps :TYPE, :TYPE[] for lists, or :TYPE[SHAPE] for arrays.

    Raises:
        PrepError: there is no such type, no column can have this name, or two have one name.
    """
    fields = list(map(_parse, texts))
    if twice := [name for name, count in Counter(field.name for field in fields).items() if count > 1]:
        raise field_error(twice[0], "this name is given twice; a column has one name and one type")
    return fields


def _parse(text: str) -> Field:
    found = FIELD.fullmatch(text)
    if found is None:
        raise field_error(text, "give NAME, NAME:TYPE or NAME=ENDING, such as caption, score:float32 or caption=txt")
    name, ending = found["name"], found["ending"] or ""
    if name == LABEL:
        raise field_error(text, f"{LABEL} is the name of the image's label, which --label-column chooses")
    if found["type"] is None:
        return Field(name, None, ending)
    shape = tuple(map(int, (found["shape"] or "").split(","))) if found["shape"] else ()
    return Field(name, make_column(name, found["type"], shape, many=bool(found["brackets"]) and not shape), ending)


def make_column(name: str, type: str, shape: tuple[int, ...] = (), *, many: bool = False, names: tuple[str, ...] = ()) -> Column:
    """Return a column. Raise PrepError if there is no such type, or no column can have this name."""
    try:
        return Column(name, type, shape, many, names=names)
    except ValueError as error:
        raise field_error(name, str(error)) from None
