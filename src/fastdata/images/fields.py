"""Fields: which columns of its images a dataset emits as targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fastdata.errors import StoreError
from fastdata.images.geometry import Placement, move_columns
from fastdata.images.records import ColumnValues, Images
from fastdata.store.columns import TEXTS, Column, Lists
from fastdata.types import Array

Move = Callable[[], tuple[Placement, Array]]
Values = Mapping[str, ColumnValues]

LABEL = "label"  # the column of the images' labels


@dataclass(frozen=True)
class Fields:
    """What a dataset emits as its targets.

    Attributes:
        names: of columns, or "label"; of one, for its value alone, or several, for a dict.
        min_visible: drop instances of whose box a smaller share lies in the output.
        read: the columns of these names, and the boxes that decide which of their instances remain.
    """

    names: str | tuple[str, ...]
    min_visible: float
    read: tuple[Column, ...] = field(compare=False)

    @classmethod
    def of(cls, names: str | Sequence[str] | None, images: Images, min_visible: float = 0.0) -> Fields | None:
        """Return the fields of these names; None: no fields. Raise StoreError or ValueError if an argument is wrong."""
        if names is None:
            if min_visible:
                raise ValueError(f"min_visible is {min_visible}, but drops boxes from fields: give fields too")
            return None
        wanted = (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"fields is {names!r}, but must be the name of a column, or several different ones")
        columns = {name: values.column for name, values in columns_of(images).items()}
        if missing := [name for name in wanted if name not in columns]:
            hint = "" if images.columns else "; fastdata-prep stores columns with --fields, annotations with --coco or --yolo"
            raise StoreError(f"{images.location} has no field {missing[0]}; it has {', '.join(columns)}{hint}")
        if not 0 <= min_visible <= 1:
            raise ValueError(f"min_visible is {min_visible}, but a share lies between 0 and 1")
        groups = {columns[name].group for name in wanted} - {None}
        boxes = [name for name, column in columns.items() if column.geometry == "xyxy" and column.group in groups]
        read = tuple(columns[name] for name in dict.fromkeys([*wanted, *boxes]))
        if min_visible and not any(column.geometry == "xyxy" for column in read):
            raise ValueError(
                f"min_visible is {min_visible}, but {', '.join(wanted)} of {images.location} have no boxes: fastdata-prep "
                "stores them with --coco or --yolo, or of a table with --fields NAME:xyxy (or xywh, cxcywh)"
            )
        return cls(names if isinstance(names, str) else wanted, min_visible, read)

    @property
    def geometric(self) -> str | None:
        """The first field that follows the pixels, such as boxes; None: there is none."""
        wanted = (self.names,) if isinstance(self.names, str) else self.names
        return next((column.name for column in self.read if column.geometry and column.name in wanted), None)

    def batch(self, columns: Values, rows: Array, move: Move) -> Any:
        """Return the targets of these rows, int64 [n]. `move` returns where points come to lie, as `move_columns` takes it."""
        found = {column.name: columns[column.name].batch(rows) for column in self.read}
        if any(column.geometry for column in self.read):
            move_columns(self.read, found, *move(), self.min_visible)
        return self._emitted(found)

    @property
    def batching(self) -> Any:
        """How `Item` batches the target."""
        return self._emitted({c.name: "list" if c.type in TEXTS else "ragged" if c.many else c.type for c in self.read})

    def _emitted(self, found: Mapping[str, Any]) -> Any:
        return found[self.names] if isinstance(self.names, str) else {name: found[name] for name in self.names}


def columns_of(images: Images) -> dict[str, ColumnValues]:
    """Return the columns of images, and their labels as the last one."""
    column = Column(LABEL, "float32" if images.labels.kind == "vector" else "int64", images.targets.shape[1:])
    return {**images.columns, LABEL: ColumnValues(column, images.targets.__getitem__)}


def as_item(batch: Any) -> Any:
    """Return the only item of a batch: numbers and text as Python has them, arrays and lists as tensors; of a dict, each."""
    if isinstance(batch, dict):
        return {name: as_item(value) for name, value in batch.items()}
    item = batch.values if isinstance(batch, Lists) else batch[0]
    if isinstance(item, np.ndarray):
        return torch.from_numpy(np.array(item))
    return item.item() if isinstance(item, np.generic) else item


class Columns(Mapping[str, Any]):
    """The columns of a dataset's samples, in its order. Each is read when it is asked for.

    An item is a numpy array [n, ...]; for lists, text, bytes and JSON, a list of n values.
    """

    def __init__(self, values: Values, rows: Array) -> None:
        self._values = values
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise KeyError(f"there is no column {name}; there are {', '.join(self)}")
        found = self._values[name].batch(self._rows)
        return found.items() if isinstance(found, Lists) else found

    def __repr__(self) -> str:
        return f"Columns({', '.join(str(values.column) for values in self._values.values())})"

    def names(self, name: str) -> tuple[str, ...]:
        """Return what the numbers of a column stand for, such as COCO's categories, or the names of keypoints; () without names."""
        return self._values[name].column.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
