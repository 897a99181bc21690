"""Columns of a store: values that belong to each sample, next to its records."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, StoreError
from fastdata.store.files import COLUMNS, FileSum, file_sum, sync, write_atomic
from fastdata.store.format import NUMBERS, entry

__all__ = ["TEXTS", "Column", "ColumnReader", "ColumnWriter", "join_columns", "parse_columns"]

Array = np.ndarray[Any, np.dtype[Any]]

TEXTS = ("text", "bytes", "json")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
GEOMETRY = {"xyxy": 4, "xy": 3}  # the length of a value: a box, or a keypoint with its visibility


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        name: letters, digits, "_" and "-"; it names the column's files.
        type: a dtype by its name in numpy, or "text", "bytes" or "json".
        shape: the shape of a value; of a list, that of one item.
        many: whether each sample has a list of values, whose length differs.
        geometry: "xyxy" for boxes and "xy" for keypoints (x, y, visibility), in pixels of the input image; None for other values.
        group: columns of one group have equally many items in each sample: those of the same instances.
        names: what whole numbers stand for, such as categories.

    Raises:
        ValueError: if these do not fit together.
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    many: bool = False
    geometry: str | None = None
    group: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a column cannot be called {self.name!r}: use letters, digits, - and _")
        if self.type not in (*NUMBERS, "bool", *TEXTS):
            raise ValueError(f"column {self.name} has the type {self.type}, but types are {', '.join((*NUMBERS, 'bool', *TEXTS))}")
        if self.type in TEXTS and (self.shape or self.many):
            raise ValueError(f"column {self.name} of {self.type} holds one value for each sample: use json for lists")
        if self.geometry is not None and (GEOMETRY.get(self.geometry), self.type) != (self.shape[-1:] or (0,))[0:1] + ("float32",):
            raise ValueError(f"column {self.name} has the geometry {self.geometry}, but is {self.type} {list(self.shape)}")

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


def parse_columns(found: Any) -> tuple[Column, ...]:
    """Read the manifest's list of columns; a store of format 1.0 has none."""
    if found is None:
        return ()
    columns = tuple(
        Column(
            name=entry(one["name"], str),
            type=entry(one["type"], str),
            shape=tuple(entry(side, int) for side in entry(one["shape"], list)),
            many=entry(one["many"], bool),
            geometry=None if one["geometry"] is None else entry(one["geometry"], str),
            group=None if one["group"] is None else entry(one["group"], str),
            names=tuple(entry(name, str) for name in entry(one["names"], list)),
        )
        for one in entry(found, list)
    )
    if len({column.name for column in columns}) != len(columns):
        raise ValueError("two columns have one name")
    return columns


class ColumnWriter:
    """Collects the values of a shard's samples and writes them to one file, for `join_columns`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._values: list[list[Any]] = [[] for _ in columns]

    def append(self, values: Sequence[Any]) -> None:
        """Add a sample: one value for each column."""
        for kept, value in zip(self._values, values, strict=True):
            kept.append(value)

    def finish(self, path: Path) -> FileSum:
        """Write the file."""
        arrays = dict[str, Array]()
        for k, (column, values) in enumerate(zip(self._columns, self._values, strict=True)):
            if not column.ragged:
                arrays[f"{k}"] = np.array(values, column.dtype).reshape(len(values), *column.shape)
                continue
            items = [_as_items(column, value) for value in values]
            arrays[f"{k}.lengths"] = np.array([len(item) for item in items], np.int64)
            arrays[f"{k}"] = np.concatenate([np.empty((0, *column.shape), column.dtype), *items])
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_atomic(path, buffer.getvalue(), durable=False)
        return file_sum(path)


def _as_items(column: Column, value: Any) -> Array:
    """Return a value of differing length as an array [length, *shape]."""
    if column.type in TEXTS:
        if column.type == "json":
            value = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    return np.array(value, column.dtype).reshape(-1, *column.shape)


def join_columns(columns: Sequence[Column], parts: Sequence[Path], out: Path) -> dict[str, FileSum]:
    """Write the columns' files, durably, from the parts that the shards have left, in their order.

    Returns:
        The checksum of each file, by its name in the store.
    """
    if not columns:
        return {}
    (out / COLUMNS).mkdir(exist_ok=True)
    for k, column in enumerate(columns):
        _write_array(out / column.files[0], column.dtype, column.shape, [str(k)] * len(parts), parts)
        if column.ragged:
            lengths = [np.load(part)[f"{k}.lengths"] for part in parts]
            offsets = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
            buffer = io.BytesIO()
            np.save(buffer, offsets)
            write_atomic(out / column.files[1], buffer.getvalue())
    sync(out / COLUMNS)
    return {name: file_sum(out / name) for column in columns for name in column.files}


def _write_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], keys: Sequence[str], parts: Sequence[Path]) -> None:
    """Write one .npy of arrays that lie in several parts; one part at a time is in memory."""
    count = 0
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (0, *shape)})
        start = file.tell()
        for key, part in zip(keys, parts, strict=True):
            values = np.load(part)[key]
            values.tofile(file)
            count += len(values)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, *shape)})
        if file.tell() != start:  # numpy leaves room for the first axis to grow, so that this never happens
            raise StoreError(f"{path}: the header of {count} values does not fit")
    sync(temporary)
    temporary.replace(path)


class ColumnReader:
    """A column of a store, memory-mapped.

    Args:
        root: the store.
        column: what it holds.
        samples: how many samples the store has.

    Raises:
        FormatError: if a file is damaged or does not fit.
    """

    def __init__(self, root: Path, column: Column, samples: int) -> None:
        self.column = column
        self._root, self._samples = root, samples
        self._values = _load(root / column.files[0], column.dtype, column.shape)
        self._offsets = _load(root / column.files[1], np.dtype(np.int64), ()) if column.ragged else None
        count = len(self._values)
        if self._offsets is None:
            fits = count == samples
        else:
            ends = np.asarray(self._offsets)
            fits = len(ends) == samples + 1 and ends[0] == 0 and ends[-1] == count and bool((np.diff(ends) >= 0).all())
        if not fits:
            raise FormatError(f"{root / column.files[-1]} does not fit the {samples} samples of its store; run fastdata verify {root}")

    def __len__(self) -> int:
        return self._samples

    def __reduce__(self) -> Any:
        return ColumnReader, (self._root, self.column, self._samples)

    def lengths(self, rows: Array) -> Array:
        """Return how many items these samples have, int64 [n]; only for lists and text."""
        assert self._offsets is not None
        return np.asarray(self._offsets[rows + 1] - self._offsets[rows])

    def take(self, rows: Array) -> Array:
        """Return the values of these samples: [n, *shape]; of lists and text, all their items, [total, *shape], in order."""
        if self._offsets is None:
            return np.asarray(self._values[rows])
        lengths = self.lengths(rows)
        ends = np.cumsum(lengths)
        index = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._offsets[rows] - (ends - lengths), lengths)
        return np.asarray(self._values[index])

    def objects(self, rows: Array) -> list[Any]:
        """Return the text, bytes or JSON of these samples."""
        return list(self._decoded(rows))

    def _decoded(self, rows: Array) -> Iterator[Any]:
        assert self._offsets is not None
        for row in rows.tolist():
            data = self._values[self._offsets[row] : self._offsets[row + 1]].tobytes()
            yield data if self.column.type == "bytes" else data.decode() if self.column.type == "text" else json.loads(data)


def _load(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            found, _, _ = np.lib.format.read_array_header_1_0(file)
        values: Array = np.load(path, mmap_mode="r" if found[0] else None, allow_pickle=False)
    except Exception as error:  # noqa: BLE001  numpy evaluates the header: whatever that throws at damaged bytes
        raise FormatError(f"{path} is damaged: {error}") from None
    if values.dtype != dtype or values.shape[1:] != shape:
        raise FormatError(f"{path} holds {values.dtype} {list(values.shape)}, the manifest says {dtype} {['n', *shape]}")
    return values
