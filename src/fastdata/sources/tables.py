"""The columns of files that list inputs by their paths: CSV, TSV, JSONL and Parquet. And text in other encodings than UTF-8."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from fastdata.errors import PrepError
from fastdata.sources.arrow import image_columns, import_pyarrow
from fastdata.sources.base import pointer_of
from fastdata.sources.inputs import LABELS, PATHS, find_column, parse_json
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, seekable
from fastdata.words import number_of

__all__ = ["ENCODING_BYTES", "PathTable", "delimiter_of", "is_path_table", "name_encoding", "not_utf8", "read_rows", "read_table"]

JSONL = (".jsonl", ".ndjson")
PARQUET = ".parquet"
ENCODING_BYTES = 1024  # of the beginning of a file that tell its encoding
MIN_UNMARKED_BYTES = 8  # that tell it without a mark
ROWS = 1024  # of a Parquet that are in memory as Python's values

Cells = Packed[Any]


@dataclass(frozen=True)
class PathTable:
    """Named columns, one of which holds paths."""

    path: AnyPath
    columns: dict[str, Cells]  # the cells of each: text, without blanks around it, or values as JSON has them
    paths: str  # the column of paths, which are text
    texts: bool  # whether all cells are text
    schema: dict[str, Any]  # of Parquet: each column's Arrow type

    @property
    def names(self) -> Cells:
        """The path of each row."""
        return self.columns[self.paths]

    def column(self, name: str, option: str) -> Cells:
        """Return the cells of the column that an option names."""
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns[name]


def is_path_table(path: AnyPath, path_column: str | None = None) -> bool:
    """Return whether a source is a file of paths. A Parquet is one if it holds no images and a column has the name of paths."""
    ending = path.suffix.lower()
    if ending != PARQUET or not path.is_file():
        return ending in (".csv", ".tsv", *JSONL) and path.is_file()
    pyarrow = import_pyarrow()
    try:
        schema = pyarrow.parquet.read_schema(seekable(path))
    except (OSError, ValueError, pyarrow.ArrowException):  # reading it as an archive reports this better
        return False
    texts = [name for name in schema.names if name.lower() in PATHS and "string" in str(schema.field(name).type)]
    return path_column in schema.names or (bool(texts) and not image_columns(schema))


def read_table(path: AnyPath, path_column: str | None, wanted: Collection[str | None] = ()) -> PathTable:
    """Read a table; an unknown ending means CSV. Raise PrepError if it cannot be read, is empty, or has no column of paths.

    path_column: None: the one with a usual name. wanted: columns that are read from a Parquet even if they hold lists.
    """
    ending, schema, columns, count = path.suffix.lower(), dict[str, Any](), dict[str, Cells](), 0
    texts = ending not in (*JSONL, PARQUET)
    if ending == PARQUET:
        rows = _parquet_rows(path, wanted, schema)
    else:
        rows = _csv_rows(path) if texts else _json_rows(path)
    try:
        for row in rows:
            if not row.keys() <= columns.keys():
                columns |= {name: Cells([None] * count) for name in row if name not in columns}
            for name, cells in columns.items():
                cells.append(row.get(name))
            count += 1
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not count:
        raise PrepError(f"{path} has no rows")
    usual = find_column([*columns], PATHS)
    if path_column is None and usual is None:
        raise PrepError(
            f"{path} has no column of paths, such as {PATHS[0]}, or named by --path-column; it has {', '.join(columns)}. Text "
            "needs --tokenizer or --train-bpe; a table without paths is not prepared: TableDataset reads it"
        )
    table = PathTable(path, columns, path_column or [*columns][usual or 0], texts, schema)
    cells = table.column(table.paths, f"--path-column {path_column}")
    columns[table.paths] = cells if texts else Packed(map(str, cells))
    return table


def _csv_rows(path: AnyPath) -> Iterator[dict[str, str]]:
    rows = filter(None, read_rows(path))
    names = [cell.strip() for cell in next(rows, ())]
    if len(set(names)) < len(names):
        raise PrepError(f"{path} has two columns of one name: {', '.join(names)}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, the first row has {len(names)}")
        yield dict(zip(names, map(str.strip, row), strict=True))


def _json_rows(path: AnyPath) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one in each line. A key that a line lacks is null there."""
    _refuse_head(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8-sig"))
                if not isinstance(row, dict):
                    raise ValueError(f"it is a {type(row).__name__}")
            except (ValueError, RecursionError) as error:
                example = '{"path": "a.jpg", "label": "cat"}'
                raise PrepError(f"{path}, line {number} is not an object of JSON, such as {example}: {error}") from None
            yield row


def _parquet_rows(path: AnyPath, wanted: Collection[str | None], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows, and set each column's type in `schema`. Lists and structs that nobody wants are empty lists."""
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(seekable(path)) as file:
            schema.update({field.name: field.type for field in file.schema_arrow})
            read = [name for name, kind in schema.items() if not kind.num_fields or name in wanted or name.lower() in LABELS]
            unread: dict[str, Any] = {name: [] for name in schema if name not in read}
            for batch in file.iter_batches(ROWS, columns=read, use_threads=False):
                yield from ({**row, **unread} for row in batch.to_pylist())
    except (ValueError, pyarrow.ArrowException) as error:
        raise PrepError(f"cannot read {path}: {error}") from error


# CSV


def read_rows(path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV, strictly: a quote in a wrong place, which would join rows, is a PrepError."""
    _refuse_head(path)
    csv.field_size_limit(sys.maxsize)  # run-length masks are longer than the default
    line = 0  # where the row before it ends
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter_of(path), strict=True)
        try:
            for row in reader:
                yield row
                line = reader.line_num
        except csv.Error as error:
            wrong = f"{error}: a quote is missing, or stands inside of a quoted value, where it must be doubled"
            raise PrepError(f"{path}, the row from line {line + 1} on: {wrong}") from None
        except UnicodeDecodeError as error:
            text = error.object[max(0, error.start - 20) : error.end + 20].decode("latin-1")
            raise PrepError(f"{path} is not UTF-8: if {text!r} is right, convert it with {_iconv('LATIN1', str(path))}") from None


def delimiter_of(path: AnyPath) -> str:
    """Return what separates the columns of a CSV: of comma, semicolon and tab, the one that comes first in its first line."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", errors="replace") as file:
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
    return f"it is {encoding}, not UTF-8: convert it with {_iconv(encoding, name)}"


def _iconv(encoding: str, name: str) -> str:
    return f"{shlex.join(['iconv', '-f', encoding, '-t', 'UTF-8', name])} > utf8.txt"


def _refuse_head(path: AnyPath) -> None:
    with path.open("rb") as file:
        head = file.read(ENCODING_BYTES)
    if pointer := pointer_of(head):
        raise PrepError(f"{path} is {pointer}")
    if encoding := name_encoding(head):
        raise PrepError(f"cannot read {path}: {not_utf8(str(path), encoding)}")
