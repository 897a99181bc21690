"""Rows of CSV, strictly: a quote in a wrong place would join rows, and nobody would see it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from fastdata.errors import PrepError
from fastdata.sources.urls import AnyPath

__all__ = ["read_rows"]

MANY = 10  # lines in a value that look like rows


def read_rows(lines: Iterable[str], delimiter: str, path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV. A newline inside quotes is part of a value.

    Raises:
        PrepError: a quote is not closed, something follows a closing quote, or a value seems to have swallowed rows.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1  # where the row begins
    try:
        for row in reader:
            if reader.line_num - line >= MANY:
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
        if len(values) > 1 and len(inner) >= MANY and all(line.count(delimiter) == len(values) - 1 for line in inner):
            raise PrepError(
                f"{where}: a quoted value goes on for {len(inner) + 2} lines, which look like rows: is its quote closed too late? "
                "If not, write the table as JSONL or Parquet"
            )
