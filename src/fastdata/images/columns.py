"""The values of the columns that belong to images, by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fastdata.data.targets import Lists
from fastdata.images.tokens import decode_tokens
from fastdata.store.column import TEXTS, Column
from fastdata.store.columns import ColumnReader
from fastdata.store.files import Stamp

__all__ = ["StoreValues", "Values", "items_of"]

Array = np.ndarray[Any, np.dtype[Any]]


class Values(Protocol):
    """The values of a column, by row."""

    column: Column

    def batch(self, rows: Array) -> Array | Lists | list[Any]:
        """Return the values of these rows: an array [n, ...], lists, or Python objects for text, bytes and JSON."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""

    def __len__(self) -> int: ...


class StoreValues:
    """The values of a column of one store. Its files are opened on first use, in the process that uses them.

    Args:
        root: the store.
        column: one of its columns.
        samples: how many samples the store has.
        stamp: of the store. While it is another, no file is opened.
    """

    def __init__(self, root: Path, column: Column, samples: int, stamp: Stamp) -> None:
        self.column = column
        self._root = root
        self._samples = samples
        self._stamp = stamp
        self._opened: ColumnReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return self._samples

    def batch(self, rows: Array) -> Array | Lists | list[Any]:
        if self._opened is None:
            opened = ColumnReader(self._root, self.column, self._samples)
            self._stamp.check()
            self._opened = opened
        if self.column.type in TEXTS:
            return self._opened.objects(rows)
        if not self.column.many:
            return self._opened.take(rows)
        offsets = np.concatenate([[0], np.cumsum(self._opened.lengths(rows))])
        return Lists(self._opened.take(rows), offsets)

    def decode(self, tokens: Sequence[int]) -> str:
        return decode_tokens(self._root, self.column, tokens)


def items_of(batch: Array | Lists | list[Any]) -> list[Any]:
    """Return a batch of values as one item for each row."""
    return np.split(batch.values, batch.offsets[1:-1]) if isinstance(batch, Lists) else list(batch)
