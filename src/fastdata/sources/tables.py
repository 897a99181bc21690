"""The columns of files that list inputs by their paths: CSV, TSV, JSONL and Parquet. And text in other encodings than UTF-8."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdata.errors import PrepError, needs
from fastdata.sources.arrow import column_of, holds_images
from fastdata.sources.columns import LABELS, PATHS, find_column
from fastdata.sources.fields import typed_cells
from fastdata.sources.inputs import Field
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
    """Named columns, one of which holds paths.

    Attributes:
        columns: the cells of each: text, without blanks around it, or values as JSON has them.
        paths: the column of paths, which are text.
        texts: whether all cells are text.
        schema: of Parquet: each column's Arrow type.
    """

    path: AnyPath
    columns: dict[str, Cells]
    paths: str
    texts: bool = True
    schema: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> Cells:
        """The path of each row."""
        return self.columns[self.paths]

    def column(self, name: str, option: str) -> Cells:
        """Return the cells of the column that an option names."""
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns[name]

    def typed(self, chosen: Field) -> tuple[Field, Sequence[Any]]:
        """Return a field with its type, and its values. Raise PrepError if its column is not there, or a cell does not fit."""
        cells = self.column(chosen.path[0], f"--fields {chosen}")
        plain = bool(self.schema) and not chosen.typed and len(chosen.path) == 1
        declared = column_of(chosen.column.name, self.schema[chosen.path[0]]) if plain else None
        where = f"{self.path}, row of "
        return typed_cells(chosen, cells, lambda row: f"{where}{self.names[row]!r}", texts=self.texts, declared=declared)


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
    """Read a table. Raise PrepError if it cannot be read, is empty, or has no column of paths.

    Args:
        path: a file. An ending other than .tsv, .jsonl, .ndjson and .parquet means CSV.
        path_column: the column of paths; None: the one with a usual name.
        wanted: columns that are read from a Parquet even if they hold lists.
    """
    ending, schema = path.suffix.lower(), dict[str, Any]()
    texts = ending not in (*JSONL, PARQUET)
    try:
        if ending == PARQUET:
            columns, schema = _read_parquet(path, wanted)
        else:
            columns = _read_csv(path, path_column) if texts else _read_jsonl(path)
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not any(columns.values()):
        raise PrepError(f"{path} has no rows")
    paths = _path_column([*columns], path_column)
    if paths is None:
        raise PrepError(
            f"{path} has no column of paths, which is called {', '.join(PATHS[:-1])} or {PATHS[-1]}, or named by --path-column; "
            f"it has {', '.join(columns)}. Text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB; a "
            "table without paths is not prepared: TableDataset reads it"
        )
    table = PathTable(path, columns, paths, texts, schema)
    cells = table.column(paths, f"--path-column {paths}")
    columns[paths] = cells if texts else Packed(map(str, cells))
    return table


def _path_column(columns: Sequence[str], named: str | None) -> str | None:
    found = find_column(columns, PATHS)
    return named if named is not None or found is None else columns[found]


def _read_csv(path: AnyPath, path_column: str | None) -> dict[str, Cells]:
    """Read a CSV. Its paths may hold any bytes, all else is UTF-8, without blanks around it."""
    rows = filter(None, read_rows(path))
    names = [_checked(path, cell.strip()) for cell in next(rows, ())]
    columns, paths = {name: Cells() for name in names}, _path_column(names, path_column)
    if len(columns) < len(names):
        raise PrepError(f"{path} has two columns of one name: {', '.join(names)}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, the first row has {len(names)}")
        for name, cell in zip(names, row, strict=True):
            columns[name].append(cell if name == paths else _checked(path, cell.strip()))
    return columns


def _checked(path: AnyPath, cell: str) -> str:
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        text = cell.encode(errors="surrogateescape").decode("latin-1")
        right = f"as Latin-1, it contains {text!r:.60}; if that is right, convert it"
        raise PrepError(f"{path} is not UTF-8: {right}: {_iconv('LATIN1', str(path))} > utf8.csv")
    return cell


def _read_jsonl(path: AnyPath) -> dict[str, Cells]:
    """Read a file with an object in each line. A key that a line lacks is null there."""
    columns, count = dict[str, Cells](), 0
    _refuse_utf16(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
                for name in row.keys():
                    if name not in columns:
                        columns[name] = Cells([None] * count)
            except (ValueError, RecursionError, AttributeError) as error:
                example = '{"path": "a.jpg", "label": "cat"}'
                raise PrepError(f"{path}, line {number} is not an object of JSON, such as {example}: {error}") from None
            count += 1
            for name, cells in columns.items():
                cells.append(row.get(name))
    return columns


def _read_parquet(path: AnyPath, wanted: Collection[str]) -> tuple[dict[str, Cells], dict[str, Any]]:
    """Read a Parquet, and each column's type. Columns of lists and structs that nobody wants are empty lists."""
    with needs("pyarrow"):
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(seekable(path)) as file:
            schema = {field.name: field.type for field in file.schema_arrow}
            read = [name for name, kind in schema.items() if not kind.num_fields or name in wanted or name.lower() in LABELS]
            columns = {name: Cells() for name in schema}
            for batch in file.iter_batches(ROWS, columns=read, use_threads=False):
                for name, cells in columns.items():
                    cells.extend(batch.column(name).to_pylist() if name in read else [[]] * len(batch))
    except (ValueError, pyarrow.ArrowException) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    return columns, schema


# CSV


def read_rows(path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV, strictly: a quote in a wrong place, which would join rows, is a PrepError."""
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
