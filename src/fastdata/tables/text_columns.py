"""Find the kinds of the columns of a CSV, which holds only text, and convert text to values.

A column holds numbers, booleans, dates or timestamps if all of its values are such. A column with numbers and other text is an
error, because damaged numbers and names look alike there. Any other column holds names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastdata.errors import PrepError
from fastdata.sources.inputs import have_commas
from fastdata.tables.arrow import arrow
from fastdata.tables.column_stats import ColumnStats
from fastdata.tables.columns import Column

__all__ = ["TextStats", "from_text"]

MARKS = ("NA", "N/A", "#N/A", "NULL", "null", "None")  # missing values like empty cells, except in a column of names
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?([nN][aA][nN]|[iI][nN][fF]|[iI]nfinity)$"
WORD = r"^(true|True|TRUE|false|False|FALSE)$"
TIMESTAMPS = tuple((unit, zone) for zone in ("", "UTC") for unit in ("s", "ms", "us", "ns"))
TYPES = {"integer": "int64", "float": "double", "category": "string"}


def from_text(array: Any, column: Column) -> Any:
    """Convert text to an array of the column's kind. Missing values are null.

    Raises:
        ValueError: if it is not such text; pyarrow's errors are ValueErrors too.
    """
    pa, compute = arrow(), arrow("compute")
    if column.kind == "category":
        return array
    array = _without_marks(array)
    if column.kind == "empty":
        if array.null_count < len(array):
            raise ValueError("there are values where none were")
        return pa.nulls(len(array))
    if column.kind == "bool":
        return compute.equal(compute.utf8_lower(array), "true")
    if column.kind == "integer":
        return _bare(array).cast(pa.uint64() if column.dtype == "uint64" else pa.int64())
    return _bare(array).cast(
        {"float": pa.float64(), "date": pa.date32()}.get(column.kind) or pa.timestamp(column.unit, column.zone or None)
    )


def _without_marks(array: Any) -> Any:
    pa, compute = arrow(), arrow("compute")
    array = compute.utf8_trim_whitespace(array)
    gone = compute.is_in(array, value_set=pa.array(("", *MARKS)))
    return compute.if_else(gone, pa.scalar(None, pa.string()), array)


def _bare(array: Any) -> Any:
    """Remove plus signs, which Arrow does not accept. Of two signs the first stays: that is no number."""
    compute = arrow("compute")
    signed = compute.any(compute.starts_with(array, "+")).as_py()
    return compute.replace_substring_regex(array, r"^\+([^+-])", r"\1") if signed else array


def _cast(array: Any, kind: Any) -> Any | None:
    try:
        return array.cast(kind)
    except arrow().ArrowInvalid:
        return None


def _any(array: Any, pattern: str) -> bool:
    compute = arrow("compute")
    return bool(compute.any(compute.match_substring_regex(array, pattern)).as_py())


class TextStats:
    """ColumnStats for a column of text. Its kind is known only at the end.

    Args:
        name: name of the column.
        names: whether its values are names, even if they look like numbers.
    """

    def __init__(self, name: str, names: bool) -> None:
        self.name = name
        self._names = names
        self._empty = self._marked = 0
        self._marks: set[str] = set()
        self._integers, self._floats, self._text = (
            ColumnStats(Column(name, k, "", TYPES[k])) for k in ("integer", "float", "category")
        )
        self._whole = True
        self._number = self._other = ""  # examples of numbers and of other text
        self._kinds: set[Any] = {"bool", "date", *TIMESTAMPS}  # kinds that fit all other text so far
        self._too_many: PrepError | None = None

    def add(self, array: Any) -> None:
        self._empty += array.null_count
        if self._names:
            self._text.add(array)
            return
        compute = arrow("compute")
        values = _without_marks(array)
        if marked := values.null_count - array.null_count:
            self._marked += marked
            self._marks.update(compute.unique(array.filter(values.is_null())).drop_null().to_pylist())
        valid = values.is_valid()
        array, values = array.filter(valid), values.filter(valid)
        if len(values) and (self._other or not self._add_numbers(values)):
            self._add_text(compute.unique(array))
        if self._number and self._other:
            raise PrepError(
                f"column {self.name!r} holds numbers, such as {self._number!r:.60}, and other text, such as {self._other!r:.60}: "
                f"correct it, {self._remedies()}"
            )

    def _remedies(self) -> str:
        return f"or take all of it as names (--category {self.name}), or leave it out (--drop {self.name})"

    def _add_numbers(self, values: Any) -> bool:
        """Add values if all are numbers, and return whether they are."""
        pa = arrow()
        bare = _bare(values)
        whole = self._whole_numbers(bare) if self._whole else None
        floats = _cast(bare, pa.float64()) if whole is None else whole.cast(pa.float64(), safe=False)
        if floats is None or (whole is not None and _any(bare, "[xX]")):  # Arrow reads 0x1F as a number
            return False
        self._number = self._number or values[0].as_py()
        if whole is not None:
            self._integers.add(whole)
        elif self._whole and not _any(bare, "[.eEnN]"):
            raise PrepError(f"column {self.name!r} holds whole numbers of more than 64 bits, {self._remedies()}")
        self._whole = whole is not None
        self._floats.add(floats)
        return True

    def _whole_numbers(self, bare: Any) -> Any | None:
        pa = arrow()
        whole = _cast(bare, pa.int64())
        return _cast(bare, pa.uint64()) if whole is None and not _any(bare, "[.eEnN]") else whole

    def _add_text(self, distinct: Any) -> None:
        compute = arrow("compute")
        bare = compute.utf8_trim_whitespace(distinct)
        number = compute.match_substring_regex(bare, NUMBER)
        if compute.any(number).as_py():
            self._number = self._number or bare.filter(number)[0].as_py()
        self._other = self._other or bare.filter(compute.invert(number))[0].as_py()
        self._kinds = {kind for kind in self._kinds if _fits(bare, kind)}
        if self._too_many is None:
            try:
                self._text.add(distinct)
            except PrepError as error:  # not an error if these are timestamps
                self._too_many = error
        if self._too_many is not None and not self._kinds:
            raise self._too_many

    def result(self) -> Column:
        """Return the column with its dtype and names."""
        if self._names or (self._other and not self._kinds):
            if not self._names and have_commas(texts := self._text.names):
                raise PrepError(
                    f"column {self.name!r} holds numbers with a comma, such as {min(texts)!r:.60}: write them as 1.5 or 1234567, "
                    f"{self._remedies()}"
                )
            self._text.names |= self._marks
            return replace(self._text.result(), missing=self._empty or None)
        column = self._text.column
        if self._other:
            kind: Any = next(kind for kind in ("bool", "date", *TIMESTAMPS) if kind in self._kinds)
            if kind == "bool":
                column = Column(self.name, "bool", "bool", "bool")
            elif kind == "date":
                column = Column(self.name, "date", "int32", "date32[day]", unit="D")
            else:
                unit, zone = kind
                column = Column(
                    self.name, "timestamp", "int64", f"timestamp[{unit}{zone and f', tz={zone}'}]", unit=unit, zone=zone
                )
        elif self._number:
            column = (self._integers if self._whole else self._floats).result()
        else:
            column = Column(self.name, "empty", "uint8", "null")
        return replace(column, missing=(self._empty + self._marked) or None)


def _fits(texts: Any, kind: Any) -> bool:
    pa, compute = arrow(), arrow("compute")
    if kind == "bool":
        return bool(compute.all(compute.match_substring_regex(texts, WORD)).as_py())
    return _cast(texts, pa.date32() if kind == "date" else pa.timestamp(kind[0], kind[1] or None)) is not None
