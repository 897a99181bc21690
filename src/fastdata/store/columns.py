"""Columns of a store: descriptions of columns, and their values for each sample."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import FormatError
from fastdata.store.files import COLUMNS, Count, Entry, FileSum, file_sum, load_npy, unique, write_npy
from fastdata.tokenizer import Spec
from fastdata.types import Array

NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")  # that torch has
TEXTS = ("text", "bytes", "json")
GEOMETRIES = {"xyxy": (4,), "xy": (3,)}  # the last axis of values
INSTANCES = "instances"  # the group of what annotations say of the objects in an image
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class ColumnTokens(Entry, frozen=True):
    """The tokenizer and the vocabulary of a column of tokens."""

    tokenizer: Spec  # its identity
    vocab_size: Count  # all ids are below it
    pad: Count | None  # the id that fills the rest of a row of fixed length; None: rows have lengths of their own


class Column(Entry, frozen=True):
    """The description of a column. Raises ValueError if parts of it contradict each other.

    The geometry is "xyxy" (boxes: x1, y1, x2, y2) or "xy" (keypoints: x, y, visibility), in pixels of the upright source file;
    0, 0 is the upper left corner of the upper left pixel.
    """

    name: str  # letters, digits, "_" and "-"; it names the column's files
    type: str  # a dtype by its name in numpy, or "text", "bytes" or "json"
    shape: tuple[Count, ...] = ()  # of a value; of a list, that of one item
    many: bool = False  # whether each sample has a list of values, whose length differs
    geometry: str | None = None
    group: str | None = None  # lists of one group have the same length in each sample: they describe the same instances
    names: tuple[str, ...] = ()  # what whole numbers stand for, such as categories; with keypoints, their names
    ids: tuple[int, ...] = ()  # the numbers that the prepared annotations had for the names; columns may differ in these
    tokens: ColumnTokens | None = None  # how whole numbers were made of text

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a column cannot be called {self.name!r}: use at most 100 letters, digits, '_' and '-', no '-' first")
        if self.type not in (*NUMBERS, "bool", *TEXTS):
            raise ValueError(f"column {self.name} has the type {self.type}, but types are {', '.join((*NUMBERS, 'bool', *TEXTS))}")
        if self.type in TEXTS and (self.shape or self.many):
            raise ValueError(f"column {self.name} of {self.type} takes no [N] or [] after its type; for lists, use the type json")
        if self.geometry is not None and (self.type, self.shape[-1:]) != ("float32", GEOMETRIES.get(self.geometry)):
            raise ValueError(f"column {self.name} of {self.type} {list(self.shape)} cannot have the geometry {self.geometry}")
        if self.ids and len(self.ids) != len(self.names):
            raise ValueError(f"column {self.name} has {len(self.ids)} ids for {len(self.names)} names")

    @property
    def ragged(self) -> bool:
        """Whether the lengths of values differ, so that they are stored with offsets."""
        return self.many or self.type in TEXTS

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values: bytes for text."""
        return np.dtype(np.uint8 if self.type in TEXTS else self.type)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the column's files in its store."""
        stems = (f"{self.name}.values", f"{self.name}.offsets") if self.ragged else (self.name,)
        return tuple(f"{COLUMNS}/{stem}.npy" for stem in stems)

    @property
    def tokenizer_file(self) -> str:
        """The name of the tokenizer's file in the store; empty if there is none."""
        file = "" if self.tokens is None else self.tokens.tokenizer.file
        return f"{COLUMNS}/{self.name}.{file}" if file else ""

    def __str__(self) -> str:
        """The name and the type, such as "boxes (lists of float32[4])"."""
        each = self.type + (str(list(self.shape)) if self.shape else "")
        tokens = "" if self.tokens is None else f", tokens of {self.tokens.tokenizer.name}"
        return f"{self.name} ({'lists of ' if self.many else ''}{each}{tokens})"


SOURCE_SIZE = Column("source_size", "int32", (2,))  # (height, width) of the prepared file, upright, where columns have a geometry


def mirror_order(names: Sequence[str]) -> list[int]:
    """Return which keypoint each one becomes in a mirror image: "left_..." and "right_..." change places."""
    place, other = {name: k for k, name in enumerate(names)}, {"left": "right", "right": "left"}
    parts = [name.partition("_") for name in names]
    return [place.get(f"{other[side]}_{rest}", k) if side in other else k for k, (side, _, rest) in enumerate(parts)]


class Lists(NamedTuple):
    """Lists of different lengths: their items, [total, ...], where each list begins, and the last end, int64 [n + 1]."""

    values: Array
    offsets: Array

    @property
    def of(self) -> Array:
        """The list that each item belongs to, int64 [total]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def select(self, chosen: Array) -> Lists:
        """Return the lists with only the items that a mask, bool [total], chooses."""
        counts = np.bincount(self.of[chosen], minlength=len(self.offsets) - 1)
        return Lists(self.values[chosen], np.concatenate([[0], np.cumsum(counts)]))

    def items(self) -> list[Array]:
        return np.split(self.values, self.offsets[1:-1]) if len(self.offsets) > 1 else []


def save_values(columns: Sequence[Column], rows: Sequence[Sequence[Any]], path: Path) -> FileSum:
    """Write the values of a shard's samples, a row for each, to a file for `join_columns`, without flushing it to disk."""
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
    """Return a value of any length as an array [length, *shape]."""
    if column.type in TEXTS:
        if column.type == "json":
            value = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    return np.array(value, column.dtype).reshape(-1, *column.shape)


def join_columns(columns: Sequence[Column], parts: Sequence[Path], out: Path) -> dict[str, FileSum]:
    """Write the columns' files from the parts that `save_values` wrote, as `write_column` does."""
    files = dict[str, FileSum]()
    for k, column in enumerate(columns):
        lengths = [np.load(part)[f"{k}.lengths"] for part in parts if column.ragged]
        files |= write_column(out, column, (np.load(part)[str(k)] for part in parts), lengths)
    return files


def write_column(root: Path, column: Column, values: Iterable[Array], lengths: Sequence[Array]) -> dict[str, FileSum]:
    """Write the files of a column, which are not flushed to disk, and return their checksums.

    Args:
        values: of all samples, in several arrays [n, *shape], of which one is in memory at a time.
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
    temporary.replace(path)
    files = {column.files[0]: file_sum(path)}
    if column.ragged:
        files[column.files[1]] = write_npy(root / column.files[1], np.concatenate([[0], *lengths]).cumsum(dtype=np.int64))
    return files


class ColumnReader:
    """A column, memory-mapped, of a store at `root` with `samples` rows.

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
        """Return the number of items of these samples, int64 [n]; only for lists and text."""
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
        values = self.take(rows)
        if self._offsets is None:
            return values
        offsets = np.concatenate([[0], np.cumsum(self.lengths(rows))])
        if self.column.many:
            return Lists(values, offsets)
        decode: Any = {"bytes": bytes, "text": bytes.decode, "json": json.loads}[self.column.type]
        data = values.tobytes()
        try:
            return [decode(data[start:end]) for start, end in pairwise(offsets.tolist())]
        except (ValueError, RecursionError):
            raise self._damaged() from None
