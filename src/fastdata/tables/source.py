"""Read a table: Parquet by row groups, CSV by parts, or Arrow's own files by batches."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath, to_path
from fastdata.sources.delimiters import delimiter_of
from fastdata.tables.arrow import arrow, describe, reading
from fastdata.tables.cut import cut, header

__all__ = ["BATCH_ROWS", "FRAME", "Part", "TableFile", "first_rows", "is_table_file"]

BATCH_ROWS = 1 << 16
FRAME = "DataFrame.arrow"  # the file of a DataFrame
TEXT = (".csv", ".tsv")
SAMPLE_ROWS = 100  # rows that are read to find the delimiter


@dataclass(frozen=True)
class Part:
    """Rows that can be read without the others. start, stop: row groups of Parquet, batches of Arrow, or bytes of a CSV."""

    start: int
    stop: int
    rows: int
    size: int  # approximate bytes


def first_rows(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """Yield the batches of the first `count` rows."""
    for batch in batches:
        if count <= 0:
            return
        yield batch.slice(0, count)
        count -= batch.num_rows


def _delimiter(path: AnyPath) -> str:
    def lines() -> Iterator[str]:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            yield from file

    try:
        return delimiter_of(lines, SAMPLE_ROWS)
    except csv.Error as error:
        raise PrepError(f"{path} is not a table of text: {error}") from None


class _Stream:
    """An Arrow stream with the methods of an Arrow file. Its batches map the file."""

    def __init__(self, path: AnyPath) -> None:
        table = arrow("ipc").open_stream(arrow().memory_map(os.fspath(path))).read_all()
        self.schema = table.schema
        self._batches = table.to_batches()
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Any:
        return self._batches[number]


class TableFile:
    """A file that holds a table.

    Args:
        path: a .parquet (.pq), .csv, .tsv or .arrow file.

    Attributes:
        names: names of all columns.
        types: the Arrow type of each; None for a CSV.

    Raises:
        PrepError: if it is damaged, or not such a table.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self._ending = path.suffix.lower()
        self.types: dict[str, Any] | None = None
        if self._ending in TEXT:
            self._delimiter = "\t" if self._ending == ".tsv" else _delimiter(path)
            self.names, self._begin = header(path, self._delimiter)
            return
        with reading(str(path)):
            self._file = self._open({})
            schema = self._file.schema if self._ending == ".arrow" else self._file.schema_arrow
        self.names = list(schema.names)
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise PrepError(f"{path} has more than one column {twice[0]!r}; give each a name of its own")
        self.types = dict(zip(schema.names, schema.types, strict=True))

    def _open(self, options: dict[str, Any]) -> Any:
        if self._ending == ".arrow":
            try:
                return arrow("ipc").open_file(arrow().memory_map(os.fspath(self.path)))
            except arrow().ArrowInvalid:  # no footer: a stream, as Hugging Face's datasets writes it
                return _Stream(self.path)
        return arrow("parquet").ParquetFile(self.path, page_checksum_verification=True, **options)

    def choose(self, names: Iterable[str]) -> None:
        """Read these columns only."""
        self.columns = list(names)
        if self.types is not None and self._ending != ".arrow":
            texts = [name for name in self.columns if describe(name, self.types[name]).kind == "category"]
            with reading(str(self.path)):
                self._file = self._open({"read_dictionary": texts})

    def parts(self) -> Iterator[tuple[Part, Iterator[Any]]]:
        """Yield all parts in order, each with its batches of rows."""
        if self.types is None:
            first = 0
            for start, stop, data in cut(self.path, self._begin, self._delimiter, len(self.names)):
                table = self._parse(data, first)
                first += table.num_rows
                yield Part(start, stop, table.num_rows, stop - start), iter(table.to_batches())
            return
        for k in range(self._file.num_record_batches if self._ending == ".arrow" else self._file.num_row_groups):
            if self._ending == ".arrow":
                batch = self._batch(k)
                rows, size = batch.num_rows, batch.nbytes
            else:
                group = self._file.metadata.row_group(k)
                rows, size = group.num_rows, group.total_byte_size
            yield Part(k, k + 1, rows, size), self.read(k, k + 1, 0)

    def read(self, start: int, stop: int, first: int) -> Iterator[Any]:
        """Yield the batches of a part. first: its first row, for messages."""
        if self.types is None:
            with self.path.open("rb") as file:
                file.seek(start)
                yield from self._parse(file.read(stop - start), first).to_batches()
        elif self._ending == ".arrow":
            for k in range(start, stop):
                yield self._batch(k).select(self.columns)
        else:
            yield from self._file.iter_batches(
                BATCH_ROWS, row_groups=list(range(start, stop)), columns=self.columns, use_threads=False
            )

    def _batch(self, number: int) -> Any:
        """Return a batch of an Arrow file. Reading values behind damaged offsets would end the process, so they are checked."""
        with reading(str(self.path)):
            batch = self._file.get_batch(number)
            batch.validate(full=True)
        return batch

    def _parse(self, data: bytes, first: int) -> Any:
        """Parse rows of a CSV as text. Empty cells are null."""
        reader = arrow("csv")
        text = arrow().string()
        bad: list[Any] = []

        def refuse(row: Any) -> str:
            bad.append(row)
            return "error"

        try:
            return reader.read_csv(
                arrow().BufferReader(data),
                reader.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self.names),
                reader.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=refuse),
                reader.ConvertOptions(
                    column_types=dict.fromkeys(self.names, text),
                    null_values=[""],
                    strings_can_be_null=True,
                    include_columns=self.columns,
                ),
            )
        except arrow().ArrowInvalid:
            if not bad:
                raise
            row = bad[0]
            raise PrepError(
                f"{self.path}, row {first + (row.number or 1)} has {row.actual_columns} columns, "
                f"the header has {row.expected_columns}: {row.text!r:.80}"
            ) from None


def is_table_file(source: str | os.PathLike[str], *, with_target: bool) -> bool:
    """Return whether a source is a table: a file of one that comes with a target, or the file of a DataFrame."""
    path = to_path(source)
    ending = path.suffix.lower()
    return path.name == FRAME or (with_target and ending in (".parquet", ".arrow", ".pq", ".csv", ".tsv") and not path.is_dir())
