"""Tables in memory: a batch is one gather of whole rows."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fastdata.data.choice import checked, disambiguate, part_of, places
from fastdata.data.random import ROW_MASK
from fastdata.data.shown import counted_of, in_one_line, shown
from fastdata.data.splitting import check_parts, check_split
from fastdata.data.transforms import TakesNoTransform
from fastdata.data.unsharded import warn_if_unsharded
from fastdata.data.weights import HasClasses, counted
from fastdata.errors import FormatError, StoreError
from fastdata.machine import free_memory
from fastdata.shared_memory import SharedArray
from fastdata.store.store import Store
from fastdata.tables.columns import Column, Table

__all__ = ["TableDataset"]

Array = np.ndarray[Any, np.dtype[Any]]
Item = tuple[dict[str, torch.Tensor], Any]

WORD = 8  # bytes; a row is a number of whole words, so that all of it can be gathered as int64
MASK = ".missing"
TARGET = "target"  # the field of a row; columns are c0, c1 and so on, and m0, m1 and so on their masks


@dataclass
class _Own:
    """Memory of this process alone, where there is no other."""

    array: Array


def _held(shape: int, dtype: Any) -> SharedArray | _Own:
    return SharedArray(shape, dtype) if SharedArray.possible() else _Own(np.empty(shape, dtype))


class _Layout:
    """Where the columns lie in a row: those of a dtype side by side, large dtypes first, so that each is aligned.

    Attributes:
        row: numpy's dtype of a whole row.
        fields: the field of each column and mask, by the name that it has in a batch, in the table's order.
        blocks: (begin, end, dtype, names) of columns of one dtype; names are empty for the target.
    """

    def __init__(self, table: Table, kind: str) -> None:
        self.fields: dict[str, str] = {}
        formats: dict[str, np.dtype[Any]] = {}
        if kind != "none":
            formats[TARGET] = np.dtype(("<f4", (len(table.targets),)) if kind == "vector" else "<i8")
        for k, column in enumerate(table.columns):
            if column.name not in table.targets:
                self.fields[column.name], formats[f"c{k}"] = f"c{k}", np.dtype(column.dtype)
                if column.missing is not None:
                    self.fields[column.name + MASK], formats[f"m{k}"] = f"m{k}", np.dtype(bool)
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


class TableDataset(TakesNoTransform, HasClasses, Dataset[Item]):
    """A store of a table, held in memory, once for all processes.

    `ds[i]` is ({column: tensor without dimensions}, target); a `Loader` delivers ({column: [B]}, targets [B]). A batch is one
    gather of whole rows. Columns have the dtypes of the store. A column that had missing values comes with its mask, a bool
    tensor called "NAME.missing"; where it is True, the column holds NaN (floats), the number of names (categories) or 0.

    The target is an int class (names or booleans in the table), the number itself (whole numbers), a float32 vector (other numbers,
    or several targets), or -1 without one. float32 may round what the store holds exactly.

    Args:
        path: a store of a table.

    Attributes:
        columns: dict of what each column is: kind, dtype, unit, scale, names.
        categories: dict of the names of each column of categories, in the order of their codes.
        missing: dict of how many values each column with a mask lacks, in the whole store.
        classes: names of the classes, or of the columns of float targets.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset.

    Raises:
        StoreError: there is no such store, it holds no table, or does not fit into memory.
        FormatError: it is damaged, or of a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        store = Store(path, kind="table")
        table = store.manifest.section("table")
        self._path, self._labels, self._count = store.path, store.manifest.labels, len(store)
        self.columns = {c.name: c for c in table.columns if c.name not in table.targets}
        self._layout = _Layout(table, self._labels.kind)
        need, free = self._layout.row.itemsize * self._count, free_memory()
        if need > free:
            raise StoreError(
                f"{store.path} takes {need} bytes in memory, but {free} are free; prepare it without some columns (--drop NAME)"
            )
        self._held = _held(self._count, self._layout.row)
        self._chosen: SharedArray | _Own | None = None
        _fill(self._held.array, store, table, self._layout)

    @property
    def categories(self) -> dict[str, list[str]]:
        return {name: list(c.names) for name, c in self.columns.items() if c.kind == "category"}

    @property
    def missing(self) -> dict[str, int]:
        return {name: c.missing for name, c in self.columns.items() if c.missing is not None}

    @property
    def classes(self) -> list[str]:
        return list(self._labels.names) if self._labels.kind in ("class", "vector") else []

    @property
    def targets(self) -> Array:
        if self._labels.kind == "none":
            return np.full(len(self), -1, np.int64)
        return np.array(self._values(TARGET))

    def _class_counts(self) -> tuple[dict[int, int], int]:
        if self._labels.kind != "class":
            raise ValueError(f"class_weights needs classes; this dataset has labels of kind {self._labels.kind!r}")
        return counted(self.targets), len(self._labels.names)

    def column(self, name: str) -> torch.Tensor:
        """All values of a column, or of a mask ("NAME.missing"), in the order of this dataset. Of the whole set it is a view of the
        shared memory: don't change it."""
        if name not in self._layout.fields:
            raise KeyError(f"no column {name!r}; there are {', '.join(map(repr, self._layout.fields))}")
        return torch.from_numpy(self._values(self._layout.fields[name]))

    def _values(self, field: str) -> Array:
        held: Array = self._held.array[field]
        return held if self._chosen is None else held[self._rows(np.arange(len(self)))]

    def __len__(self) -> int:
        warn_if_unsharded()
        return self._count if self._chosen is None else len(self._chosen.array)

    def __getitem__(self, index: int) -> Item:
        columns, targets = self.gather(self._rows(np.array([checked(index, len(self))])))
        target = targets[0]
        return {name: column[0] for name, column in columns.items()}, int(target) if target.ndim == 0 else target

    def locate(self, indices: Any, *, seed: int = 0, epoch: int = 0, repeats: Array | None = None) -> Array:
        """The rows of a batch, int64, for `gather`. A row looks the same in every epoch: seed, epoch and repeats change nothing."""
        return self._rows(indices)

    def gather(self, rows: Array, *, pin: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """({column: [B]}, targets [B] or [B, columns]) of these rows of the whole table. pin: page-lock them."""
        words = self._held.array.view(np.int64).reshape(self._count, self._layout.row.itemsize // WORD)
        taken = words.take(rows, axis=0).view(np.uint8)
        columns: dict[str, Any] = dict.fromkeys(self._layout.fields)  # in their order
        targets: torch.Tensor | None = None
        for begin, end, dtype, names in self._layout.blocks:
            block = taken[:, begin:end].view(dtype)
            if names:
                columns.update(zip(names, _own(block.T, pin).unbind(), strict=True))
            else:
                targets = _own(block if self._labels.kind == "vector" else block[:, 0], pin)
        return columns, torch.full((len(rows),), -1, device="cpu", pin_memory=pin) if targets is None else targets

    def _rows(self, indices: Any) -> Array:
        return self._keys(indices) & ROW_MASK

    def _keys(self, indices: Any) -> Array:
        indices = np.asarray(indices, np.int64)
        chosen: Array = indices if self._chosen is None else self._chosen.array[indices]
        return chosen

    def subset(self, indices: Any) -> TableDataset:
        """The rows at `indices`, or where a mask of booleans is True, in that order; the memory is the same."""
        other = copy.copy(self)
        keys = disambiguate(self._keys(places(indices, len(self))))
        other._chosen = _held(len(keys), np.int64)
        other._chosen.array[...] = keys
        return other

    def split(self, fraction: float, *, seed: int, stratify: bool = False) -> tuple[TableDataset, TableDataset]:
        """Two disjoint datasets, the first with `fraction` of the rows, chosen by `seed`; each keeps the order.

        Args:
            fraction: between 0 and 1.
            seed: same seed, same split.
            stratify: the same fraction of every class (or whole number), rounded.

        Raises:
            TypeError, ValueError: a wrong argument, or one part would be empty.
        """
        check_split(fraction, seed, stratify)
        if stratify and self._labels.kind not in ("class", "integer"):
            raise ValueError(f"stratify needs classes; this dataset has labels of kind {self._labels.kind!r}")
        classes = self.targets if stratify else None
        first = part_of(fraction, seed, self._keys(np.arange(len(self))), classes)
        check_parts(fraction, first, classes)
        return self.subset(first), self.subset(~first)

    def __repr__(self) -> str:
        classes = f"{len(self.classes)} classes" if self._labels.kind == "class" else ""
        rows = counted_of(len(self), self._count, f"rows of {len(self.columns)} columns")
        return in_one_line(self, rows, classes, shown(self._path))


def _own(part: Array, pin: bool) -> torch.Tensor:
    """A tensor of its own memory, in one piece. numpy copies so little in half of torch's time."""
    if not pin:
        return torch.from_numpy(np.ascontiguousarray(part))
    out = torch.empty(part.shape, dtype=torch.from_numpy(part[:0].copy()).dtype, device="cpu", pin_memory=True)
    out.numpy()[...] = part
    return out


def _fill(rows: Array, store: Store, table: Table, layout: _Layout) -> None:
    """Read the records of all shards into their places. The rows of a shard stay in the cache while its columns come in."""
    (variant,) = store.manifest.variants
    reader, wanted = store.reader(variant), list(table.records())
    start = 0
    for shard, count in enumerate(store.manifest.shard_samples):
        part = rows[start : start + count]
        start += count
        for k, (column, is_mask) in enumerate(wanted):
            record, dtype = reader.get(shard * len(wanted) + k), np.dtype(bool if is_mask else column.dtype).newbyteorder("<")
            if len(record) != count * dtype.itemsize:
                raise FormatError(
                    f"{store.path}, shard {shard}, record {k}: {len(record)} bytes for {count} rows; run fastdata verify"
                )
            values = np.frombuffer(record, dtype)
            if column.name not in table.targets:
                part[layout.fields[column.name + MASK * is_mask]] = values
            else:
                _fill_target(part[TARGET], values, column, table.targets.index(column.name))


def _fill_target(target: Array, values: Array, column: Column, place: int) -> None:
    if target.ndim == 1:
        target[...] = values
    else:
        target[:, place] = values / 10.0**column.scale if column.scale else values
