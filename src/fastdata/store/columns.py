"""Columns of a store: values that belong to each sample, next to its records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import FormatError
from fastdata.store.column import TEXTS, Column
from fastdata.store.files import FileSum, file_sum, load_npy, publish, sync, unique, write_npy
from fastdata.types import Array


class Lists(NamedTuple):
    """Lists of different lengths: all their items, [total, ...], and where each begins, and the last ends, int64 [n + 1]."""

    values: Array
    offsets: Array

    @property
    def of(self) -> Array:
        """The list that each item belongs to, int64 [total]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def select(self, chosen: Array) -> Lists:
        """Return the lists with these of their items, bool [total], only."""
        counts = np.bincount(self.of[chosen], minlength=len(self.offsets) - 1)
        return Lists(self.values[chosen], np.concatenate([[0], np.cumsum(counts)]))

    def items(self) -> list[Array]:
        return np.split(self.values, self.offsets[1:-1]) if len(self.offsets) > 1 else []


def save_values(columns: Sequence[Column], rows: Sequence[Sequence[Any]], path: Path) -> FileSum:
    """Write the values of a shard's samples, a row for each, to a file for `join_columns`, which is not flushed to disk."""
    arrays = dict[str, Any]()
    for k, column in enumerate(columns):
        values = [row[k] for row in rows]
        if not column.ragged:
            arrays[f"{k}"] = np.array(values, column.dtype).reshape(len(values), *column.shape)
            continue
        items = [_as_items(column, value) for value in values]
        arrays[f"{k}.lengths"] = np.array([len(item) for item in items], np.int64)
        arrays[f"{k}"] = np.concatenate([np.empty((0, *column.shape), column.dtype), *items])
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return file_sum(path)


def _as_items(column: Column, value: Any) -> Array:
    """Return a value of differing length as an array [length, *shape]."""
    if column.type in TEXTS:
        if column.type == "json":
            value = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    return np.array(value, column.dtype).reshape(-1, *column.shape)


def join_columns(columns: Sequence[Column], parts: Sequence[Path], out: Path) -> dict[str, FileSum]:
    """Write the columns' files, durably, from the parts that the shards have left, and return their checksums by name."""
    files = dict[str, FileSum]()
    for k, column in enumerate(columns):
        lengths = [np.load(part)[f"{k}.lengths"] for part in parts if column.ragged]
        files |= write_column(out, column, (np.load(part)[str(k)] for part in parts), lengths)
    return files


def write_column(root: Path, column: Column, values: Iterable[Array], lengths: Sequence[Array]) -> dict[str, FileSum]:
    """Write the files of a column, durably, and return their checksums.

    Args:
        values: of all samples, in several arrays [n, *shape] of which one is in memory at a time.
        lengths: how many values each sample has, if the column is ragged.
    """
    path, count = root / column.files[0], 0
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f"{path.name}.{unique()}.tmp")
    header = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False}
    with temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (0, *column.shape)})
        for some in values:
            some.astype(column.dtype, copy=False).tofile(file)
            count += len(some)
        file.seek(0)  # numpy leaves room for the first axis to grow
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, *column.shape)})
    publish(temporary, path)
    files = {column.files[0]: file_sum(path)}
    if column.ragged:
        files[column.files[1]] = write_npy(root / column.files[1], np.concatenate([[0], *lengths]).cumsum(dtype=np.int64))
    sync(path.parent)
    return files


class ColumnReader:
    """A column of a store at `root` with so many samples, memory-mapped.

    Raises:
        FormatError: if a file is damaged or does not fit.
    """

    def __init__(self, root: Path, column: Column, samples: int) -> None:
        self.column = column
        self._path, self._samples = root / column.files[-1], samples
        self._values = load_npy(root / column.files[0], column.dtype, (None if column.ragged else samples, *column.shape))
        self._offsets = load_npy(root / column.files[1], np.dtype(np.int64), (samples + 1,)) if column.ragged else None
        if self._offsets is not None and (self._offsets[0] != 0 or self._offsets[-1] != len(self._values)):
            raise self._damaged()

    def __len__(self) -> int:
        return self._samples

    def _damaged(self) -> FormatError:
        return FormatError(f"{self._path} does not fit the {self._samples} samples of its store; run fastdata verify")

    def lengths(self, rows: Array) -> Array:
        """Return how many items these samples have, int64 [n]; only for lists and text."""
        assert self._offsets is not None
        starts, ends = self._offsets[rows], self._offsets[rows + 1]
        if ((starts < 0) | (ends < starts) | (ends > len(self._values))).any():
            raise self._damaged()
        return np.asarray(ends - starts)

    def take(self, rows: Array) -> Array:
        """Return the values of these samples: [n, *shape]; of lists and text, all their items, [total, *shape], in order."""
        if self._offsets is None:
            return np.asarray(self._values[rows])
        lengths = self.lengths(rows)
        befores = np.cumsum(lengths) - lengths
        index = np.arange(lengths.sum()) + np.repeat(self._offsets[rows] - befores, lengths)
        return np.asarray(self._values[index])

    def read(self, rows: Array) -> Array | Lists | list[Any]:
        """Return the values of these samples: an array [n, *shape], lists, or Python objects for text, bytes and JSON."""
        if self.column.type in TEXTS:
            return self.objects(rows)
        if not self.column.many:
            return self.take(rows)
        return Lists(self.take(rows), np.concatenate([[0], np.cumsum(self.lengths(rows))]))

    def objects(self, rows: Array) -> list[Any]:
        """Return the text, bytes or JSON of these samples."""
        assert self._offsets is not None
        decode: Any = {"bytes": bytes, "text": bytes.decode, "json": json.loads}[self.column.type]
        ends = zip(self._offsets[rows].tolist(), self.lengths(rows).tolist(), strict=True)
        try:
            return [decode(self._values[start : start + length].tobytes()) for start, length in ends]
        except (ValueError, RecursionError):
            raise self._damaged() from None
