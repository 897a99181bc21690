"""Cut a CSV into parts between rows. A newline inside quotes does not end a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.csv_rows import MANY, read_rows, refuse_joined
from fastdata.sources.encodings import refuse_utf16

__all__ = ["cut", "header"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 8 << 20
LONGEST = 1 << 30  # most bytes of a row
QUOTE, LINE = ord('"'), ord("\n")


def header(path: AnyPath, delimiter: str) -> tuple[list[str], int]:
    """Return the names of the columns, and where the first row after them begins."""
    refuse_utf16(path)
    with path.open("rb") as file:
        lines = iter(file.readline, b"")
        try:
            names = next(read_rows((line.decode("utf-8-sig") for line in lines), delimiter, path), [])
        except UnicodeDecodeError as error:
            raise PrepError(f"{path} is not a table of text in UTF-8: {error}") from None
        names = [name.strip() for name in names]
        at = file.tell()
    if not any(names):
        raise PrepError(f"{path} has no header; its first line has to name the columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        what = f"names {twice[0]!r} twice" if twice and twice[0] else f"leaves column {names.index('') + 1} without a name"
        raise PrepError(f"{path}: the header {what}; give each column a name of its own")
    return names, at


def cut(path: AnyPath, start: int, delimiter: str, columns: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield parts of some MB that begin and end where rows do: (begin, end, bytes).

    Raises:
        PrepError: a quote is not closed, something follows a closing quote, or a value seems to have swallowed rows.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = b""
        while True:
            more = file.read(BLOCK)
            data += more
            end = _end(data, delimiter, columns, path, start, last=not more)
            if end:
                yield start, start + end, data[:end]
                start, data = start + end, data[end:]
            if not more:
                return
            if len(data) > LONGEST:
                raise PrepError(
                    f"{path}: the row that begins at byte {start} has no end within {LONGEST} bytes; is a quote not closed?"
                )


def _end(data: bytes, delimiter: str, columns: int, path: AnyPath, start: int, *, last: bool) -> int:
    """Return the end of the last whole row in `data`, which begins with a row; 0 if no row ends there.

    Args:
        columns: of the table.
        path, start: the file and the place of `data` in it, for messages.
        last: whether the file ends with `data`.
    """
    found = np.frombuffer(data, np.uint8)
    ends, quotes = np.flatnonzero(found == LINE), np.flatnonzero(found == QUOTE)
    if _stray(found, quotes, delimiter):
        return _slow_end(data, delimiter, columns, path, start, last=last)
    before = np.searchsorted(quotes, ends)  # the quotes before each end of a line
    inside, counts = np.unique(before[before % 2 == 1], return_counts=True)
    for quote in inside[counts > MANY].tolist():
        value = data[quotes[quote - 1] : quotes[quote] if quote < len(quotes) else None].decode("latin-1")
        refuse_joined([value], columns, delimiter, f"{path}, from byte {start + quotes[quote - 1]}")
    if last:
        if len(quotes) % 2:
            raise PrepError(f"{path} ends inside quotes, after byte {start}: it was cut short, or a quote is not closed")
        return len(data)
    outside = ends[before % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _stray(found: Array, quotes: Array, delimiter: str) -> bool:
    """Return whether an unquoted value contains a quote. If so, counting quotes does not show what is inside quotes."""
    opens, closes = quotes[::2], quotes[1::2]
    around = np.array([ord(delimiter), LINE, ord("\r"), QUOTE], np.uint8)
    before, after = found[opens[opens > 0] - 1], found[closes[closes < len(found) - 1] + 1]
    return not (np.isin(before, around).all() and np.isin(after, around).all())


def _slow_end(data: bytes, delimiter: str, columns: int, path: AnyPath, start: int, *, last: bool) -> int:
    """Do the same with Python's csv reader."""
    at = end = before = 0

    def lines() -> Iterator[str]:
        nonlocal at
        for line in io.StringIO(data.decode("latin-1"), newline=""):
            at += len(line)
            yield line

    try:
        for row in csv.reader(lines(), delimiter=delimiter, strict=True):
            refuse_joined(row, columns, delimiter, f"{path}, the row at byte {start + end}")
            before, end = end, at
    except csv.Error as error:
        if at < len(data) or last:
            raise PrepError(
                f"{path}, the row at byte {start + end}: {error}: a quote is missing, or stands inside of a quoted value, "
                "where it must be doubled"
            ) from None
        return end  # the last row goes on after data
    return len(data) if last else before  # the last row may go on after data
