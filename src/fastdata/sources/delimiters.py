"""Find the delimiter of a CSV file: comma, semicolon or tab."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

__all__ = ["delimiter_of"]

DELIMITERS = ",;\t"


def delimiter_of(lines: Callable[[], Iterable[str]], rows: int | None = None) -> str:
    """Return the delimiter that splits every row into as many columns as the first row.

    If several do, return the one that comes first in the first row. Return a comma if the first row has none of them. `lines`
    returns all lines, each time it is called; `rows` limits how many rows are read.
    """

    def parsed(delimiter: str) -> Iterator[list[str]]:
        return filter(None, csv.reader(lines(), delimiter=delimiter))

    first = {delimiter: next(parsed(delimiter), [""]) for delimiter in DELIMITERS}
    able = sorted((d for d in DELIMITERS if len(first[d]) > 1), key=lambda d: len(first[d][0])) or [","]
    even = (d for d in able if len(able) == 1 or len({len(row) for row in islice(parsed(d), rows)}) == 1)
    return next(even, able[0])
