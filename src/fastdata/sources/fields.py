"""`--fields`: which values become columns of a store, and as which type."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from fastdata.errors import PrepError
from fastdata.sources.instances import LAYOUTS, as_instances, instance_column
from fastdata.sources.packed import Packed
from fastdata.sources.values import infer_text, infer_values, listed, parse_text
from fastdata.store.column import Column

__all__ = ["Field", "field_error", "make_column", "nested", "parse_fields"]

FIELD = re.compile(
    r"(?P<name>[^=].*?)(=\.?(?P<ending>[^=:/]+))?(:(?P<type>[a-z]+[0-9]*)(?P<brackets>\[(?P<shape>[0-9]+(,[0-9]+)*)?\])?)?"
)
LABEL = "label"  # datasets emit the image's label under this name


@dataclass(frozen=True)
class Field:
    """A value of `--fields`: the name of a column, where its values are, and what to store them as.

    Attributes:
        path: the column of the table or archive, and what is nested in it: "objects.bbox" are the boxes in a column of objects.
        column: None, if the type is to be inferred from the values.
        ending: of the files, or members of a tar, that hold the values; "": they are a column of a table, or of an archive.
        layout: how boxes or keypoints are given, as in `LAYOUTS`; "" for other values.
    """

    path: tuple[str, ...]
    column: Column | None = None
    ending: str = ""
    layout: str = ""

    @property
    def name(self) -> str:
        """The name of the stored column."""
        return self.path[-1]

    def __str__(self) -> str:
        """What was typed, without the type."""
        return ".".join(self.path) + (f"={self.ending}" if self.ending else "")

    def shaped(self, declared: Column) -> Column:
        """Return the column to store, given the one that suits the values: lists of arrays take the arrays' shape from there."""
        if self.column is None:
            return declared
        shape = declared.shape if declared.many else declared.shape[1:]
        return structs.replace(self.column, shape=shape) if self.column.many and not self.layout else self.column

    def infer(self, values: Sequence[Any]) -> Column:
        """Return the column that suits values as Python has them.

        Raises:
            PrepError: the keypoints differ in number, or there are none.
        """
        if not self.layout:
            return self.shaped(infer_values(self.name, values))
        try:
            return self.column or instance_column(self.name, self.layout, values)
        except ValueError as error:
            raise field_error(self, str(error)) from None

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
        if self.layout or len(self.path) > 1:
            cells, texts, declared = self._inner(cells, where, texts=texts), False, None
        if self.column is not None and (self.layout or not self.column.many):
            column = self.column
        elif texts:
            column = self.column or make_column(self.name, infer_text(cells))
        else:
            column = self.infer(cells) if declared is None else self.shaped(declared)
        if column.type == "bytes" and not texts:
            raise field_error(self, "bytes come from files or members, as NAME=ENDING, or from a Parquet that holds the images")
        values = Packed[Any]()
        for row, cell in enumerate(cells):
            try:
                if self.layout:
                    values.append(as_instances(column, cell).tolist())
                else:
                    values.append(listed(column, parse_text(column, cell) if texts else cell))
            except (ValueError, OverflowError, RecursionError) as error:
                raise field_error(self, f"{where(row)}: {error}") from None
        return column, values

    def _inner(self, cells: Sequence[Any], where: Callable[[int], str], *, texts: bool) -> Sequence[Any]:
        """Return what is nested in the cells; those of text are JSON."""
        found = Packed[Any]()
        for row, cell in enumerate(cells):
            try:
                found.append(nested(json.loads(cell) if texts else cell, self.path[1:]))
            except (ValueError, RecursionError) as error:
                raise field_error(self, f"{where(row)}: {error}") from None
        return found


def nested(value: Any, path: Sequence[str]) -> Any:
    """Return what lies under these names in an object, or in each object of a list.

    Raises:
        ValueError: an object lacks a name, or is none.
    """
    for name in path:
        objects = value if isinstance(value, list) else [value]
        if not all(isinstance(one, dict) and name in one for one in objects):
            raise ValueError(f"{value!r:.60} has no {name}")
        value = [one[name] for one in objects] if isinstance(value, list) else value[name]
    return value


def field_error(field: Field | str, why: str) -> PrepError:
    """Make the error on a value of `--fields`."""
    return PrepError(f"--fields {field}: {why}")


def parse_fields(texts: Sequence[str]) -> list[Field]:
    """Parse the values of `--fields`.

    Each is NAME or NAME=ENDING, then perhaps :TYPE, :TYPE[] for lists, or :TYPE[SHAPE] for arrays. The type of boxes is xyxy, xywh
    or cxcywh, that of keypoints xy, or xy[COUNT]. NAME may lead into objects, as in objects.bbox.

    Raises:
        PrepError: there is no such type, no column can have this name, or two have one name.
    """
    fields = list(map(_parse, texts))
    if twice := [name for name, count in Counter(field.name for field in fields).items() if count > 1]:
        raise field_error(twice[0], "this name is given twice; a column has one name and one type")
    return fields


def _parse(text: str) -> Field:
    match = FIELD.fullmatch(text)
    if match is None:
        raise field_error(text, "give NAME, NAME:TYPE or NAME=ENDING, such as caption, score:float32 or caption=txt")
    path, ending, type = tuple(match["name"].split(".")), match["ending"] or "", match["type"]
    if path[-1] == LABEL:
        raise field_error(text, f"{LABEL} is the name of the image's label, which --label-column chooses")
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    if type is None:
        return Field(path, None, ending)
    if type in LAYOUTS:
        if match["brackets"] and (type != "xy" or len(shape) != 1):
            raise field_error(
                text, "boxes are given as xyxy, xywh or cxcywh, and keypoints as xy, or xy[17] for 17 of each instance"
            )
        unknown = type == "xy" and not match["brackets"]
        column = None if unknown else _checked(path[-1], lambda: instance_column(path[-1], type, shape=shape))
        return Field(path, column, ending, type)
    return Field(path, make_column(path[-1], type, shape, many=bool(match["brackets"]) and not shape), ending)


def make_column(name: str, type: str, shape: tuple[int, ...] = (), *, many: bool = False, names: tuple[str, ...] = ()) -> Column:
    """Return a column. Raise PrepError if there is no such type, or no column can have this name."""
    return _checked(name, lambda: Column(name, type, shape, many, names=names))


def _checked(name: str, make: Callable[[], Column]) -> Column:
    try:
        return make()
    except ValueError as error:
        raise field_error(name, str(error)) from None
