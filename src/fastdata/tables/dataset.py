"""The dataset of tables, which are read from memory: a batch is one gather of whole rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fastdata import node_memory
from fastdata.data.choice import checked
from fastdata.data.dataset import RowsDataset
from fastdata.data.ram import RAMDataset, StrPath
from fastdata.data.shown import counted_of, in_one_line, shown
from fastdata.errors import FormatError, StoreError
from fastdata.machine import free_memory
from fastdata.remote.locate import locate
from fastdata.remote.url import Storage
from fastdata.shared_memory import PrivateArray, SharedArray
from fastdata.store.format import Labels
from fastdata.store.place import remedy
from fastdata.store.store import Store
from fastdata.tables.columns import MASK, Column, Table
from fastdata.tables.layout import TARGET, WORD, Layout

__all__ = ["RAMTable", "TableDataset"]

Array = np.ndarray[Any, np.dtype[Any]]
Item = tuple[dict[str, torch.Tensor], Any]


@dataclass
class _Rows:
    """All rows of a table: its memory, and what its manifest says of them."""

    memory: SharedArray | PrivateArray
    labels: Labels
    shards: Array  # how many rows each shard has

    def __len__(self) -> int:
        return len(self.memory.array)

    @property
    def targets(self) -> Array:
        return np.full(len(self), -1, np.int64) if self.labels.kind == "none" else self.memory.array[TARGET]

    def shards_of(self, rows: Array) -> Array:
        return np.searchsorted(np.cumsum(self.shards), rows, "right")


class TableDataset(RowsDataset):
    """A store of a table, held in memory once for all processes.

    `ds[i]` is ({column: tensor without dimensions}, target); a `Loader` delivers ({column: [B]}, targets [B]). A batch is one
    gather of whole rows. Columns have the dtypes of the store. A column with missing values comes with its mask, a bool tensor
    called "NAME.missing"; where the mask is True, the column holds NaN (floats), the number of names (categories) or 0.

    The target is an int class (names or booleans in the table), the number itself (whole numbers), a float32 vector (other numbers,
    or several targets), or -1 without a target. float32 may round values that the store holds exactly.

    Args:
        path: a store of a table; a folder, or a URL.
        cache, cache_size, storage: as for LMDBDataset.
        shared: hold it once for all processes of this machine, see RAMDataset; False: for this process and its children.

    Attributes:
        columns: dict of each column's description: kind, dtype, unit, scale, names.
        categories: dict of each category's names, in the order of its codes.
        missing: dict of the number of missing values in each column with a mask, in the whole store.
        classes: names of the classes, or of the columns of float targets.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset.

    Raises:
        StoreError: if there is no such store, it holds no table, or the table does not fit into memory.
        FormatError: if it is damaged, or of a newer version.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
        shared: bool = True,
    ) -> None:
        super().__init__()
        path = locate(path, cache, cache_size, storage)
        store = Store(path, kind="table")
        table = store.manifest.section("table")
        self._path = store.place
        labels, count = store.manifest.labels, len(store)
        self.columns = {c.name: c for c in table.columns if c.name not in table.targets}
        self._layout = Layout(table, labels.kind)
        key = repr((store.identity(store.manifest.variants[0]), table)) if shared else None
        need, free = self._layout.row.itemsize * count, free_memory()
        if need > free and not node_memory.is_held(key, count, self._layout.row):
            raise StoreError(
                f"{store.place} takes {need} bytes in memory, but {free} are free; prepare it without some columns (--drop NAME)"
            )
        memory: SharedArray | PrivateArray
        if SharedArray.possible():
            fill = partial(_fill, store=store, table=table, layout=self._layout)
            memory = node_memory.once(key, count, self._layout.row, fill, str(store.path))
        else:
            memory = PrivateArray(np.zeros(count, self._layout.row))
            _fill(memory.array, store, table, self._layout)
        self._whole = _Rows(memory, labels, np.array(store.manifest.shard_samples, np.int64))

    @property
    def _all(self) -> _Rows:
        return self._whole

    @property
    def classes(self) -> list[str]:
        return super().classes if self._whole.labels.kind in ("class", "vector") else []

    @property
    def categories(self) -> dict[str, list[str]]:
        return {name: list(c.names) for name, c in self.columns.items() if c.kind == "category"}

    @property
    def missing(self) -> dict[str, int]:
        return {name: c.missing for name, c in self.columns.items() if c.missing is not None}

    def column(self, name: str) -> torch.Tensor:
        """Return a copy of all values of a column, or of a mask ("NAME.missing"), in the order of this dataset."""
        if name not in self._layout.fields:
            raise KeyError(f"no column {name!r}; there are {', '.join(map(repr, self._layout.fields))}")
        return torch.from_numpy(self._whole.memory.array[self._layout.fields[name]][self.rows(np.arange(len(self)))])

    def __getitem__(self, index: int) -> Item:
        columns, targets = self.gather(self.rows(np.array([checked(index, len(self))])))
        target = targets[0]
        return {name: column[0] for name, column in columns.items()}, int(target) if target.ndim == 0 else target

    def locate(self, indices: Any, *, seed: int = 0, epoch: int = 0, repeats: Array | None = None) -> Array:
        """Return the rows of a batch, int64, for `gather`. Rows are the same in every epoch, so the other arguments are ignored."""
        return self.rows(indices)

    def gather(self, rows: Array, *, pin: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return ({column: [B]}, targets [B] or [B, columns]) for rows of the whole table. pin: page-lock the tensors."""
        words = self._whole.memory.array.view(np.int64).reshape(len(self._whole), self._layout.row.itemsize // WORD)
        taken = words.take(rows, axis=0).view(np.uint8)
        columns: dict[str, Any] = dict.fromkeys(self._layout.fields)  # fixes their order
        targets: torch.Tensor | None = None
        for begin, end, dtype, names in self._layout.blocks:
            block = taken[:, begin:end].view(dtype)
            if names:
                columns.update(zip(names, _contiguous(block.T, pin).unbind(), strict=True))
            else:
                targets = _contiguous(block if self._whole.labels.kind == "vector" else block[:, 0], pin)
        return columns, torch.full((len(rows),), -1, device="cpu", pin_memory=pin) if targets is None else targets

    def _strata(self, stratify: bool | str) -> Array:
        return self.targets if self._whole.labels.kind == "integer" else super()._strata(stratify)

    def __repr__(self) -> str:
        classes = f"{len(self.classes)} classes" if self._whole.labels.kind == "class" else ""
        rows = counted_of(len(self), len(self._whole), f"rows of {len(self.columns)} columns")
        return in_one_line(self, rows, classes, shown(self._path))


class RAMTable(RAMDataset, TableDataset):
    """A table in memory, like every TableDataset; see RAMDataset."""

    def __init__(
        self,
        source: StrPath,
        *,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
        shared: bool = True,
    ) -> None:
        super().__init__(locate(source, cache, cache_size, storage, in_memory=True), shared=shared)


def _contiguous(part: Array, pin: bool) -> torch.Tensor:
    """Copy into a contiguous tensor, with numpy: for so few bytes it takes half of torch's time."""
    if not pin:
        return torch.from_numpy(np.ascontiguousarray(part))
    out = torch.empty(part.shape, dtype=torch.from_numpy(part[:0].copy()).dtype, device="cpu", pin_memory=True)
    out.numpy()[...] = part
    return out


def _fill(rows: Array, store: Store, table: Table, layout: Layout) -> None:
    """Read the records of all shards, shard by shard, so that its rows stay in the cache while its columns are read."""
    (variant,) = store.manifest.variants
    reader = store.reader(variant)
    records = list(table.records())
    start = 0
    for shard, count in enumerate(store.manifest.shard_samples):
        part = rows[start : start + count]
        start += count
        for k, (column, is_mask) in enumerate(records):
            index = shard * len(records) + k
            record = reader.get(index)
            dtype = np.dtype(bool if is_mask else column.dtype).newbyteorder("<")
            if len(record) != count * dtype.itemsize:
                raise FormatError(
                    f"{store.place}, shard {shard}, record {k}: {len(record)} bytes for {count} rows; "
                    f"{remedy(reader, index, store.place)}"
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
