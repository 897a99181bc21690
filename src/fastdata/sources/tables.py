"""Rows of the files that list inputs by their paths: CSV, TSV, JSONL and Parquet. And text in other encodings than UTF-8."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastdata.errors import PrepError, needs
from fastdata.sources.arrow import column_of, holds_images
from fastdata.sources.fields import Field
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, seekable
from fastdata.store.column import Column
from fastdata.words import number_of

__all__ = ["ENCODING_BYTES", "LABELS", "PathTable", "delimiter_of", "find_column", "is_path_table", "name_encoding", "not_utf8"]
__all__ += ["read_rows", "read_table"]

PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "class", "class_name", "category")
INDEX = re.compile(r"(Unnamed: .*|__index_level_\d+__)?")  # the columns that pandas writes for the index of a DataFrame
JSONL = (".jsonl", ".ndjson")
PARQUET = ".parquet"
ENCODING_BYTES = 1024  # of the beginning of a file that tell its encoding
MIN_UNMARKED_BYTES = 8  # that tell it without a mark
ROWS = 1024  # of a Parquet that are in memory as Python's values


@dataclass(frozen=True)
class PathTable:
    """Rows of cells in named columns.

    Attributes:
        paths: the index of the column of paths.
        rows: text, or values as JSON has them.
        texts: whether all cells are text.
        schema: of Parquet: each column's Arrow type.
    """

    path: AnyPath
    columns: tuple[str, ...]
    paths: int
    rows: Sequence[list[Any]]
    texts: bool = True
    schema: dict[str, Any] = field(default_factory=dict)

    def column(self, index: int) -> Sequence[Any]:
        """Return the cells of a column: text without blanks around it, numbers, lists of numbers as tuples, and None."""
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

    def may_be_labels(self, index: int) -> bool:
        """Return whether a column has a label's type in the first row, and is not the index of a DataFrame."""
        return not INDEX.fullmatch(self.columns[index]) and not isinstance(self.rows[0][index], list | dict | bytes)

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
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns.index(name)

    def describe(self, indices: Sequence[int]) -> str:
        """Name columns as the source of the labels; "" for none."""
        names = " and ".join(self.columns[k] for k in indices)
        return f"column{'s' if len(indices) > 1 else ''} {names} of {self.path.name}" if indices else ""


def find_column(columns: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the index of the first column with one of these names, in any case."""
    lower = [column.lower() for column in columns]
    return next((lower.index(name) for name in names if name in lower), None)


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


def read_table(path: AnyPath, path_column: str | None, wanted: Collection[str] = ()) -> PathTable:
    """Read a table, whose rows must all have one length.

    Args:
        path: a file. An ending other than .tsv, .jsonl, .ndjson and .parquet means CSV.
        path_column: the column of paths; None: the one with a usual name.
        wanted: columns that are read from a Parquet even if they hold lists.

    Raises:
        PrepError: it cannot be read, is empty, or has no column of paths.
    """
    ending = path.suffix.lower()
    texts = ending not in (*JSONL, PARQUET)
    try:
        columns, rows, schema = _read_parquet(path, wanted) if ending == PARQUET else (_read_csv if texts else _read_jsonl)(path)
    except (OSError, csv.Error) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not rows:
        raise PrepError(f"{path} has no rows")
    table = PathTable(path, columns, 0, rows, texts, schema)
    paths = find_column(columns, PATHS) if path_column is None else table.index(path_column, f"--path-column {path_column}")
    if paths is None:
        raise PrepError(
            f"{path} has no column of paths, which is called {', '.join(PATHS[:-1])} or {PATHS[-1]}, or named by --path-column; "
            f"it has {', '.join(columns)}. Text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB; a "
            "table without paths is not prepared: TableDataset reads it"
        )
    return replace(table, paths=paths)


_Read = tuple[tuple[str, ...], Sequence[list[Any]], dict[str, Any]]  # columns, rows, and Arrow's types


def _read_csv(path: AnyPath) -> _Read:
    rows = Packed(filter(None, read_rows(path)))
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, the first row has {len(rows[0])}")
    columns = tuple(_checked(path, cell.strip()) for cell in (rows[0] if rows else ()))
    return columns, rows.taken(range(1, len(rows))), {}


def _checked(path: AnyPath, cell: str) -> str:
    """Return a cell that is used as a name, which must be UTF-8. Paths may hold any bytes."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        text = cell.encode(errors="surrogateescape").decode("latin-1")
        right = f"as Latin-1, it contains {text!r:.60}; if that is right, convert it"
        raise PrepError(f"{path} is not UTF-8: {right}: {_iconv('LATIN1', str(path))} > utf8.csv")
    return cell


def _read_jsonl(path: AnyPath) -> _Read:
    """Read a file with an object in each line. A key that a line lacks is null there."""
    found, columns, number = Packed[dict[str, Any]](), dict[str, None](), 0
    _refuse_utf16(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line.decode("utf-8-sig")) if line.strip() else None
            except (ValueError, RecursionError) as error:
                raise PrepError(f"{path}, line {number} is not an object of JSON: {error}") from None
            if isinstance(row, dict):
                found.append(row)
                columns.update(dict.fromkeys(row))
            elif line.strip():
                raise PrepError(f'{path}, line {number} is not an object of JSON, such as {{"path": "a.jpg", "label": "cat"}}')
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
    except (ValueError, pyarrow.ArrowException) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    return tuple(schema), rows, schema


# CSV


def read_rows(path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV, strictly: a quote in a wrong place would join rows. A newline inside quotes is part of a value.

    Raises:
        PrepError: a quote is not closed, or something follows a closing quote; or the file is UTF-16.
    """
    _refuse_utf16(path)
    csv.field_size_limit(sys.maxsize)  # run-length masks are longer than the default
    delimiter, line = delimiter_of(path), 1  # where the row begins
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                yield row
                line = reader.line_num + 1
        except csv.Error as error:
            last = reader.line_num
            where = f"line {line}" if last <= line else f"the row of lines {line} to {last}"
            raise PrepError(
                f"{path}, {where}: {error}: a quote is missing, or stands inside of a quoted value, where it must be doubled"
            ) from None


def delimiter_of(path: AnyPath) -> str:
    """Return what separates the columns of a CSV: of comma, semicolon and tab, the one that comes first in its first line."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        names = re.sub(r'"[^"]*"', "", file.readline())
    return next((character for character in names if character in ",;\t"), ",")


# Encodings


def name_encoding(head: bytes) -> str:
    """Return the encoding of a text if it is UTF-16 or UTF-32, else "". head: the first bytes."""
    if (name := json.detect_encoding(head).upper()) in ("UTF-16", "UTF-32"):  # a mark at the beginning says so
        return name
    even, odd = head[::2], head[1::2]
    for name, zeros, others in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if len(head) >= MIN_UNMARKED_BYTES and 2 * zeros.count(0) > len(zeros) and not others.count(0):
            return name
    return ""


def not_utf8(name: str, encoding: str) -> str:
    """Say that a file is not UTF-8, and how to convert it."""
    return f"it is {encoding}, not UTF-8: convert it with {_iconv(encoding, name)} > utf8.txt"


def _iconv(encoding: str, name: str) -> str:
    return shlex.join(["iconv", "-f", encoding, "-t", "UTF-8", name])


def _refuse_utf16(path: AnyPath) -> None:
    with path.open("rb") as file:
        encoding = name_encoding(file.read(ENCODING_BYTES))
    if encoding:
        raise PrepError(f"cannot read {path}: {not_utf8(str(path), encoding)}")
