"""What stands between the columns of a CSV: commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from itertools import islice

__all__ = ["delimiter_of"]

DELIMITERS = ",;\t"


def delimiter_of(lines: Callable[[], Iterable[str]], rows: int | None = None) -> str:
    """The one that gives each row as many columns as the first one has; if several do, what comes first in that. A comma, if none
    is in it. lines: all of them, from the first on, each time it is called. rows: how many of these to look at."""

    def counts(delimiter: str) -> set[int]:
        return {len(row) for row in islice(filter(None, csv.reader(lines(), delimiter=delimiter)), rows)}

    first = {delimiter: next(filter(None, csv.reader(lines(), delimiter=delimiter)), [""]) for delimiter in DELIMITERS}
    able = sorted((d for d in DELIMITERS if len(first[d]) > 1), key=lambda d: len(first[d][0])) or [","]
    return able[0] if len(able) == 1 else next((d for d in able if len(counts(d)) == 1), able[0])
