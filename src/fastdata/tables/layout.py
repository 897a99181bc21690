"""The layout of a table's rows in memory."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from fastdata.tables.columns import MASK, Table

__all__ = ["TARGET", "WORD", "Layout"]

WORD = 8  # bytes; a row is a whole number of words, so that it can be gathered as int64
TARGET = "target"  # a field of a row; c0, c1 and so on are columns, m0, m1 and so on their masks


class Layout:
    """The places of columns in a row. Columns of one dtype are adjacent, large dtypes first, so that each is aligned.

    Attributes:
        row: numpy's dtype of a row.
        fields: the field of each column and mask, by its name in a batch, in the table's order.
        blocks: (begin, end, dtype, names) of the columns of one dtype; names are empty for the target.
    """

    def __init__(self, table: Table, labels: str) -> None:
        self.fields: dict[str, str] = {}
        formats: dict[str, np.dtype[Any]] = {}
        if labels != "none":
            formats[TARGET] = np.dtype(("<f4", (len(table.targets),)) if labels == "vector" else "<i8")
        for k, column in enumerate(table.columns):
            if column.name not in table.targets:
                self.fields[column.name] = f"c{k}"
                formats[f"c{k}"] = np.dtype(column.dtype)
                if column.missing is not None:
                    self.fields[column.name + MASK] = f"m{k}"
                    formats[f"m{k}"] = np.dtype(bool)
        order = sorted(formats, key=lambda f: (-formats[f].base.itemsize, str(formats[f].base), f == TARGET))
        ends = np.cumsum([formats[field].itemsize for field in order]).tolist()
        offsets = dict(zip(order, [0, *ends[:-1]], strict=True))
        self.row = np.dtype(
            {
                "names": order,
                "formats": [formats[field] for field in order],
                "offsets": [offsets[field] for field in order],
                "itemsize": -(-ends[-1] // WORD) * WORD,
            }
        )
        names = {field: name for name, field in self.fields.items()}
        self.blocks: list[tuple[int, int, np.dtype[Any], list[str]]] = []
        for (dtype, is_target), group in groupby(order, key=lambda f: (formats[f].base, f == TARGET)):
            fields = list(group)
            begin, end = offsets[fields[0]], offsets[fields[-1]] + formats[fields[-1]].itemsize
            self.blocks.append((begin, end, dtype, [] if is_target else [names[field] for field in fields]))
