"""Tables that list files by their paths: CSV, TSV, JSONL and Parquet. And text in other encodings than UTF-8."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TextIO

from fastdata.errors import PrepError, needs
from fastdata.sources.arrow import column_of, holds_images
from fastdata.sources.fields import Field
from fastdata.sources.inputs import is_image
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, seekable
from fastdata.store.column import Column
from fastdata.words import number_of

__all__ = ["ENCODING_BYTES", "INDEX", "LABELS", "PathTable", "delimiter_of", "find_column", "is_path_table", "name_encoding"]
__all__ += ["not_utf8", "read_rows", "read_table", "refuse_utf16"]

PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
INDEX = re.compile(r"(Unnamed: .*|__index_level_\d+__)?")  # the columns that pandas writes for the index of a DataFrame
LABELS = ("label", "labels", "class", "class_name", "category")
JSONL = (".jsonl", ".ndjson")
PARQUET = ".parquet"
DELIMITERS = ",;\t"
JOINED_LINES = 10  # in a value that look like rows
ENCODING_BYTES = 1024  # of the beginning of a file that tell its encoding
MIN_UNMARKED_BYTES = 8  # without a mark that tell
MARKS = {  # the longer ones first: that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
ROWS = 1024  # of a Parquet that are in memory as Python's values
NO_TEXT = "text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB"


@dataclass(frozen=True)
class PathTable:
    """Rows of cells.

    Attributes:
        columns: their names; "column 1" and so on if the table has no header.
        named: whether the columns have names.
        paths: the index of the column of paths.
        rows: text, or values as JSON has them.
        texts: whether all cells are text.
        schema: of Parquet: each column's Arrow type.
    """

    path: AnyPath
    columns: tuple[str, ...]
    named: bool
    paths: int
    rows: Sequence[list[Any]]
    texts: bool = True
    schema: dict[str, Any] = field(default_factory=dict)

    def column(self, index: int) -> Sequence[Any]:
        """Return the cells of a column: text without blanks around it, numbers, and None."""
        return Packed(self._plain(row, index) for row in self.rows)

    def names(self) -> Iterator[str]:
        """Yield the path of each row."""
        return (str(row[self.paths]) for row in self.rows)

    def _plain(self, row: Sequence[Any], index: int) -> Any:
        cell = row[index]
        if isinstance(cell, dict | bytes) or (isinstance(cell, list) and not all(isinstance(one, int | float) for one in cell)):
            raise PrepError(
                f"{self.describe_row(row)}: its {self.columns[index]} is a {type(cell).__name__}, but labels and splits are "
                f"numbers or text; --fields {self.columns[index]} stores it"
            )
        if isinstance(cell, list):
            return tuple(cell)
        return cell if cell is None or isinstance(cell, int | float) else _checked(self.path, str(cell).strip())

    def is_plain(self, index: int) -> bool:
        """Return whether a column holds numbers or text only."""
        return self.texts or not any(isinstance(row[index], list | dict | bytes) for row in self.rows)

    def typed(self, chosen: Field) -> tuple[Column, Sequence[Any]]:
        """Return the column of a field's cells, and its values.

        Raises:
            PrepError: there is no such column, or a cell does not hold a value of the column's type.
        """
        index = self.index(chosen.path[0], f"--fields {chosen}")
        cells = self.column(index) if self.texts else Packed(row[index] for row in self.rows)
        inferred = chosen.column is None or chosen.column.many
        nested = chosen.layout or len(chosen.path) > 1
        declared = column_of(chosen.name, self.schema[chosen.name]) if self.schema and inferred and not nested else None
        return chosen.typed(cells, lambda row: self.describe_row(self.rows[row]), texts=self.texts, declared=declared)

    def describe_row(self, row: Sequence[Any]) -> str:
        return f"{self.path}, row of {row[self.paths]!r}"

    def index(self, name: str, option: str) -> int:
        """Return the index of the column that an option names."""
        if not self.named:
            raise PrepError(f"{option} needs names of columns: give {self.path} a first line, such as path,label,split")
        return _index(self.path, self.columns, name, option)

    def describe(self, indices: Sequence[int]) -> str:
        """Name columns as the source of the labels; "" for none."""
        columns = "columns " if len(indices) > 1 else "column "
        names = " and ".join(self.columns[k] for k in indices)
        return f"{columns if self.named else ''}{names} of {self.path.name}" if indices else ""


def find_column(columns: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the index of the first column with one of these names, in any case."""
    lower = [column.lower() for column in columns]
    return next((lower.index(name) for name in names if name in lower), None)


def _index(path: AnyPath, columns: Sequence[str], name: str, option: str) -> int:
    if name not in columns:
        raise PrepError(f"{option}: {path} has no column {name}; it has {', '.join(columns)}")
    return columns.index(name)


def is_path_table(path: AnyPath, path_column: str | None = None) -> bool:
    """Return whether a source is a file of paths. A Parquet is one if it holds no images and a column has the name of paths."""
    ending = path.suffix.lower()
    if ending not in (".csv", ".tsv", *JSONL, PARQUET) or not path.is_file():
        return False
    if ending != PARQUET:
        return True
    with needs("pyarrow"):
        import pyarrow.parquet
    try:
        schema = pyarrow.parquet.read_schema(seekable(path))
    except (OSError, ValueError, pyarrow.ArrowException):  # reading it as an archive reports this better
        return False
    texts = [name for name in schema.names if name.lower() in PATHS and "string" in str(schema.field(name).type)]
    return path_column in schema.names or (bool(texts) and not holds_images(schema))


def _paths_of(path: AnyPath, columns: Sequence[str], path_column: str | None) -> int | None:
    """Return the index of the column of paths: the one that the caller names, else the first with a usual name."""
    return (
        find_column(columns, PATHS) if path_column is None else _index(path, columns, path_column, f"--path-column {path_column}")
    )


def read_table(path: AnyPath, path_column: str | None, is_known: Callable[[str], bool], wanted: Collection[str] = ()) -> PathTable:
    """Read a table, whose rows must all have one length.

    Args:
        path: a file. An ending other than .tsv, .jsonl, .ndjson and .parquet means CSV.
        path_column: the column of paths; None: the one with a usual name, in a CSV else the first.
        is_known: whether a name is that of an input. A first line of a CSV that begins with one is not a header.
        wanted: columns that are read from a Parquet even if they hold lists.

    Raises:
        PrepError: it cannot be read, is empty, or has no column of paths.
    """
    ending = path.suffix.lower()
    if ending not in (*JSONL, PARQUET):
        return _read_csv(path, path_column, is_known)
    columns, rows, schema = _read_jsonl(path) if ending in JSONL else _read_parquet(path, wanted)
    if not rows:
        raise PrepError(f"{path} has no rows")
    if (paths := _paths_of(path, columns, path_column)) is None:
        raise PrepError(
            f"{path} has no column of paths, which is called {', '.join(PATHS[:-1])} or {PATHS[-1]}, or named by --path-column; it "
            f"has {', '.join(columns)}; {NO_TEXT}"
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row[paths], str | int):
            raise PrepError(f"{path}, row {number}: its {columns[paths]} is {row[paths]!r:.60}, but must be a path")
    return PathTable(path, columns, True, paths, rows, texts=False, schema=schema)


def _read_csv(path: AnyPath, path_column: str | None, is_known: Callable[[str], bool]) -> PathTable:
    try:
        refuse_utf16(path)
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            delimiter = "\t" if path.suffix.lower() == ".tsv" else delimiter_of(lambda: _from_start(file))
            rows = Packed(filter(None, read_rows(_from_start(file), delimiter, path)))
    except (OSError, csv.Error) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not rows:
        raise PrepError(f"{path} is empty; it needs rows of path,label")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, the first row has {len(rows[0])}")
    named = path_column is not None or (not _is_like(rows) and find_column(rows[0], PATHS) is not None)
    if not named and (_is_like(rows) or is_known(rows[0][0])):
        return PathTable(path, tuple(f"column {k}" for k in range(1, len(rows[0]) + 1)), False, 0, rows)
    columns = tuple(_checked(path, cell.strip()) for cell in rows[0])
    if len(rows) == 1:
        raise PrepError(f"{path} has no rows: its only line, {','.join(columns):.60}, names columns")
    paths = _paths_of(path, columns, path_column)
    if paths is None:  # the first that is not pandas' index
        paths = next((k for k, name in enumerate(columns) if not INDEX.fullmatch(name)), 0)
    return PathTable(path, columns, True, paths, rows.taken(range(1, len(rows))))


def _from_start(file: TextIO) -> TextIO:
    file.seek(0)
    return file


def _checked(path: AnyPath, cell: str) -> str:
    """Return a cell that is used as a name, which must be UTF-8. Paths may hold any bytes."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        text = cell.encode(errors="surrogateescape").decode("latin-1")
        right = f"as Latin-1, it contains {text!r:.60}; if that is right, convert it"
        raise PrepError(f"{path} is not UTF-8: {right}: {_iconv('LATIN1', str(path))} > utf8.csv")
    return cell


def _is_like(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a row and no header: it begins with a path, as the next does."""
    first, ending = rows[0][0], os.path.splitext(rows[0][0])[1].lower()
    return is_image(first) or (ending != "" and len(rows) > 1 and ending == os.path.splitext(rows[1][0])[1].lower())


_Read = tuple[tuple[str, ...], Sequence[list[Any]], dict[str, Any]]  # columns, rows, and Arrow's types


def _read_jsonl(path: AnyPath) -> _Read:
    """Read a file with an object in each line. A key that a line lacks is null there."""
    found, columns, number = Packed[dict[str, Any]](), dict[str, None](), 0
    try:
        refuse_utf16(path)
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line.decode("utf-8-sig"))
                    if not isinstance(row, dict):
                        raise ValueError('give an object, such as {"path": "a.jpg", "label": "cat"}')
                    found.append(row)
                    columns.update(dict.fromkeys(row))
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PrepError(f"{path}, line {number} is not an object of JSON: {error}") from None
    return tuple(columns), Packed([row.get(name) for name in columns] for row in found), {}


def _read_parquet(path: AnyPath, wanted: Collection[str]) -> _Read:
    """Read a Parquet. Columns of lists and structs that nobody wants are left unread; their cells are empty lists."""
    with needs("pyarrow"):
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(seekable(path)) as file:
            schema = {field.name: field.type for field in file.schema_arrow}
            read = [name for name, kind in schema.items() if not kind.num_fields or name in wanted or name.lower() in LABELS]
            rows = Packed[list[Any]]()
            for batch in file.iter_batches(ROWS, columns=read, use_threads=False):
                cells = {name: batch.column(name).to_pylist() for name in read}
                rows.extend(map(list, zip(*(cells.get(name, [[]] * len(batch)) for name in schema), strict=True)))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    return tuple(schema), rows, schema


# CSV


def read_rows(lines: Iterable[str], delimiter: str, path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV, strictly: a quote in a wrong place would join rows. A newline inside quotes is part of a value.

    Raises:
        PrepError: a quote is not closed, something follows a closing quote, or a value seems to have swallowed rows.
    """
    csv.field_size_limit(sys.maxsize)  # run-length masks are longer than the default
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1  # where the row begins
    try:
        for row in reader:
            if reader.line_num - line >= JOINED_LINES:
                _refuse_joined(row, delimiter, f"{path}, line {line}")
            yield row
            line = reader.line_num + 1
    except csv.Error as error:
        last = reader.line_num
        where = f"line {line}" if last <= line else f"the row of lines {line} to {last}"
        raise PrepError(
            f"{path}, {where}: {error}: a quote is missing, or stands inside of a quoted value, where it must be doubled"
        ) from None


def _refuse_joined(values: list[str], delimiter: str, where: str) -> None:
    """Raise PrepError if a value consists of lines that have as many columns as the table: a quote was closed too late."""
    for value in values:
        inner = value.split("\n")[1:-1]
        if len(values) > 1 and len(inner) >= JOINED_LINES and all(line.count(delimiter) == len(values) - 1 for line in inner):
            raise PrepError(
                f"{where}: a quoted value goes on for {len(inner) + 2} lines, which look like rows: is its quote closed too late? "
                "If not, write the table as JSONL or Parquet"
            )


def delimiter_of(lines: Callable[[], Iterable[str]], rows: int | None = None) -> str:
    """Return the delimiter that splits every row into as many columns as the first row.

    If several do, return the one that comes first in the first row. Return a comma if the first row has none of them. `lines`
    returns all lines, each time it is called; `rows` limits how many rows are read.
    """

    csv.field_size_limit(sys.maxsize)

    def parsed(delimiter: str) -> Iterator[list[str]]:
        return filter(None, csv.reader(lines(), delimiter=delimiter))

    first = {delimiter: next(parsed(delimiter), [""]) for delimiter in DELIMITERS}
    able = sorted((d for d in DELIMITERS if len(first[d]) > 1), key=lambda d: len(first[d][0])) or [","]
    even = (d for d in able if len(able) == 1 or len({len(row) for row in islice(parsed(d), rows)}) == 1)
    return next(even, able[0])


# Encodings


def name_encoding(head: bytes) -> str:
    """Return the encoding of a text if it is UTF-16 or UTF-32, else "". head: the first bytes.

    The mark at the beginning tells. Without one, UTF-16 is known by its zeros, most of which are at odd places, or at even ones.
    """
    for mark, name in MARKS.items():
        if head.startswith(mark):
            return name
    even, odd = head[::2], head[1::2]
    for name, with_zeros, without in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if len(head) >= MIN_UNMARKED_BYTES and 2 * with_zeros.count(0) > len(with_zeros) and not without.count(0):
            return name
    return ""


def not_utf8(name: str, encoding: str) -> str:
    """Say that a file is not UTF-8, and how to convert it."""
    return f"it is {encoding}, not UTF-8: convert it with {_iconv(encoding, name)} > utf8.txt"


def _iconv(encoding: str, name: str) -> str:
    return shlex.join(["iconv", "-f", encoding, "-t", "UTF-8", name])


def refuse_utf16(path: AnyPath) -> None:
    """Raise PrepError if a file of text is UTF-16 or UTF-32."""
    with path.open("rb") as file:
        encoding = name_encoding(file.read(ENCODING_BYTES))
    if encoding:
        raise PrepError(f"cannot read {path}: {not_utf8(str(path), encoding)}")
