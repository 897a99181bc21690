"""Tables that list files by their paths: CSV, TSV, JSONL and Parquet. And text in other encodings than UTF-8."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import shlex
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TextIO

from fastdata.errors import PrepError, needs
from fastdata.sources.arrow import column_of, holds_images
from fastdata.sources.fields import Field
from fastdata.sources.inputs import is_image, look
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, seekable
from fastdata.store.column import Column
from fastdata.words import number_of

__all__ = ["ENCODING_BYTES", "INDEX", "LABELS", "PathTable", "SimilarNames", "delimiter_of", "is_path_table"]
__all__ += ["name_encoding", "not_utf8", "read_rows", "read_table", "refuse_utf16"]

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
        root: the folder that the paths are relative to.
        columns: their names; "column 1" and so on if the table has no header.
        named: whether the columns have names.
        paths: the index of the column of paths.
        rows: text, or values as JSON has them.
        texts: whether all cells are text.
        schema: of Parquet: each column's Arrow type.
    """

    path: AnyPath
    root: AnyPath
    columns: tuple[str, ...]
    named: bool
    paths: int
    rows: Sequence[list[Any]]
    texts: bool = True
    schema: dict[str, Any] = field(default_factory=dict)

    def find(self, names: Sequence[str]) -> int | None:
        """Return the index of the first column with one of these names, in any case."""
        lower = [column.lower() for column in self.columns]
        return next((lower.index(name) for name in names if name in lower), None)

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

    def holds_paths(self) -> bool:
        """Return whether the table seems to hold paths, judged by its header and first row."""
        first = self.rows[0][self.paths]
        return self.find(PATHS) is not None or is_image(first) or not look(self.root / first)[1]

    def index(self, name: str, option: str) -> int:
        """Return the index of the column that an option names."""
        if not self.named:
            raise PrepError(f"{option} needs names of columns: give {self.path} a first line, such as path,label,split")
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns.index(name)

    def describe(self, indices: Sequence[int]) -> str:
        """Name columns as the source of the labels; "" for none."""
        columns = "columns " if len(indices) > 1 else "column "
        names = " and ".join(self.columns[k] for k in indices)
        return f"{columns if self.named else ''}{names} of {self.path.name}" if indices else ""


class SimilarNames:
    """Files that names of a table may mean: with Windows' separators, in another form of Unicode, or without their ending.

    Args:
        files: the names of all files.
        wanted: only those are looked for; None: any.
    """

    def __init__(self, files: Iterable[str], wanted: Iterable[str] | None = None) -> None:
        keys = None if wanted is None else set(map(self._key, wanted))
        self._files = defaultdict[str, list[str]](list)
        for file in files:
            key = self._key(file)
            for one in (key, os.path.splitext(key)[0]):
                if keys is None or one in keys:
                    self._files[one].append(file)

    @staticmethod
    def _key(name: str) -> str:
        return os.path.normpath(unicodedata.normalize("NFC", name.replace("\\", "/")))

    def find(self, name: str, where: AnyPath) -> str:
        """Return the file that a name means; "" for none. where: the table, for messages.

        Raises:
            PrepError: there are several.
        """
        key = self._key(name)
        found = self._files.get(key, [])
        found = [file for file in found if self._key(file) == key] or [file for file in found if is_image(file)] or found
        if len(found) > 1:
            raise PrepError(f"{where} names {name!r}, which may be {found[0]} or {found[1]}: write the ending")
        return found[0] if found else ""


def is_path_table(path: AnyPath, path_column: str | None = None) -> bool:
    """Return whether a source is a file of paths. A Parquet is one if it holds no images and a column has the name of paths."""
    ending = path.suffix.lower()
    if ending not in (".csv", ".tsv", *JSONL, PARQUET) or not path.is_file():
        return False
    return ending != PARQUET or _lists_paths(path, path_column)


def _lists_paths(path: AnyPath, path_column: str | None) -> bool:
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
    if path_column is not None:
        if path_column not in columns:
            raise PrepError(f"--path-column {path_column}: {path} has no column {path_column}; it has {', '.join(columns)}")
        return columns.index(path_column)
    lower = [column.lower() for column in columns]
    return next((lower.index(name) for name in PATHS if name in lower), None)


def read_table(
    path: AnyPath, root: AnyPath, path_column: str | None, is_known: Callable[[str], bool], wanted: Collection[str] = ()
) -> PathTable:
    """Read a table, whose rows must all have one length.

    Args:
        path: a file. An ending other than .tsv, .jsonl, .ndjson and .parquet means CSV.
        root: the folder that the paths are relative to.
        path_column: the column of paths; None: the one with a usual name, in a CSV else the first.
        is_known: whether a name is that of an input. A first line of a CSV that begins with one is not a header.
        wanted: columns that are read from a Parquet even if they hold lists.

    Raises:
        PrepError: it cannot be read, is empty, or has no column of paths.
    """
    ending = path.suffix.lower()
    if ending not in (*JSONL, PARQUET):
        return _read_csv(path, root, path_column, is_known)
    columns, rows, schema = _read_jsonl(path) if ending in JSONL else _read_parquet(path, wanted)
    if (paths := _paths_of(path, columns, path_column)) is None:
        raise PrepError(
            f"{path} has no column of paths, which is called {', '.join(PATHS[:-1])} or {PATHS[-1]}, or named by --path-column; it "
            f"has {', '.join(columns)}; {NO_TEXT}"
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row[paths], str | int):
            raise PrepError(f"{path}, row {number}: its {columns[paths]} is {row[paths]!r:.60}, but must be a path")
    return PathTable(path, root, columns, True, paths, rows, texts=False, schema=schema)


def _read_csv(path: AnyPath, root: AnyPath, path_column: str | None, is_known: Callable[[str], bool]) -> PathTable:
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
    named = path_column is not None or (not _is_like(rows) and _paths_of(path, rows[0], None) is not None)
    if not named and (_is_like(rows) or is_known(rows[0][0])):
        return PathTable(path, root, tuple(f"column {k}" for k in range(1, len(rows[0]) + 1)), False, 0, rows)
    columns = tuple(_checked(path, cell.strip()) for cell in rows[0])
    if len(rows) == 1:
        raise PrepError(f"{path} has no rows: its only line, {','.join(columns):.60}, names columns")
    paths = _paths_of(path, columns, path_column)
    if paths is None:  # the first that is not pandas' index
        paths = next((k for k, name in enumerate(columns) if not INDEX.fullmatch(name)), 0)
    return PathTable(path, root, columns, True, paths, rows.taken(range(1, len(rows))))


def _from_start(file: TextIO) -> TextIO:
    file.seek(0)
    return file


def _checked(path: AnyPath, cell: str) -> str:
    """Return a cell that is used as a name, which must be UTF-8. Paths may hold any bytes."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        text = cell.encode(errors="surrogateescape").decode("latin-1")
        command = shlex.join(["iconv", "-f", "LATIN1", "-t", "UTF-8", str(path)])
        raise PrepError(
            f"{path} is not UTF-8: as Latin-1, it contains {text!r:.60}; if that is right, convert it: {command} > utf8.csv"
        )
    return cell


def _is_like(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a row and no header: it begins with a path, as the next does."""
    first, ending = rows[0][0], os.path.splitext(rows[0][0])[1].lower()
    return is_image(first) or (ending != "" and len(rows) > 1 and ending == os.path.splitext(rows[1][0])[1].lower())


_Read = tuple[tuple[str, ...], Sequence[list[Any]], dict[str, Any]]  # columns, rows, and Arrow's types


def _read_jsonl(path: AnyPath) -> _Read:
    """Read a file with an object in each line. A key that a line lacks is null there."""
    found = Packed(_objects(path))
    if not found:
        raise PrepError(f"{path} is empty; it needs lines such as {_EXAMPLE}")
    columns = tuple(dict.fromkeys(key for row in found for key in row))
    return columns, Packed([row.get(name) for name in columns] for row in found), {}


_EXAMPLE = '{"path": "a.jpg", "label": "cat"}'


def _objects(path: AnyPath) -> Iterator[dict[str, Any]]:
    try:
        refuse_utf16(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _object(path, number, line)
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error.strerror}") from error


def _object(path: AnyPath, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise PrepError(f"{path}, line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise PrepError(f"{path}, line {number} is not an object such as {_EXAMPLE}")
    return row


def _read_parquet(path: AnyPath, wanted: Collection[str]) -> _Read:
    """Read a Parquet. Columns of lists and structs that nobody wants are left unread; their cells are empty lists."""
    with needs("pyarrow"):
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(seekable(path)) as file:
            schema = file.schema_arrow
            nested = {name for name in schema.names if schema.field(name).type.num_fields and name not in wanted}
            nested = {name for name in nested if name.lower() not in LABELS}
            batches = file.iter_batches(ROWS, columns=[name for name in schema.names if name not in nested], use_threads=False)
            rows = Packed(row for batch in batches for row in _rows(batch, schema.names))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not rows:
        raise PrepError(f"{path} has no rows")
    return tuple(schema.names), rows, {name: schema.field(name).type for name in schema.names}


def _rows(batch: Any, names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the rows of a batch of a Parquet. Columns that were not read have empty lists."""
    read = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    return map(list, zip(*(read.get(name, [[]] * batch.num_rows) for name in names), strict=True))


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
    return f"it is {encoding}, not UTF-8: convert it with {shlex.join(['iconv', '-f', encoding, '-t', 'UTF-8', name])} > utf8.txt"


def refuse_utf16(path: AnyPath) -> None:
    """Raise PrepError if a file of text is UTF-16 or UTF-32."""
    with path.open("rb") as file:
        encoding = name_encoding(file.read(ENCODING_BYTES))
    if encoding:
        raise PrepError(f"cannot read {path}: {not_utf8(str(path), encoding)}")
