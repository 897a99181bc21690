"""Fields: which columns of its images a dataset emits as targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastdata.data.targets import Lists
from fastdata.errors import StoreError
from fastdata.images.geometry import Placement, move_boxes, move_keypoints
from fastdata.images.records import Images, Values, items_of
from fastdata.store.column import TEXTS, Column

__all__ = ["Columns", "Fields"]

Array = np.ndarray[Any, np.dtype[Any]]

Move = Callable[[], tuple[Placement, Array]]

LABEL = "label"  # the field that is the image's label


@dataclass(frozen=True)
class Fields:
    """What a dataset emits as its targets.

    Attributes:
        names: of columns, or "label".
        single: whether the target is the value of the one name, not a dict.
        min_visible: drop instances of whose box a smaller share lies in the output.
    """

    names: tuple[str, ...]
    single: bool
    min_visible: float = 0.0

    @classmethod
    def of(cls, names: str | Sequence[str] | None, images: Images, min_visible: float = 0.0) -> Fields | None:
        """Return the fields of these names; None: no fields.

        Raises:
            StoreError: if the images lack one of them.
            ValueError: if there is no name, or one twice, or `min_visible` is not a share.
        """
        if names is None:
            if min_visible:
                raise ValueError(f"min_visible is {min_visible}, but drops boxes from fields: give fields too")
            return None
        wanted = (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"fields is {names!r}, but must be the name of a column, or several different ones")
        if missing := [name for name in wanted if name not in images.columns and name != LABEL]:
            known = ", ".join([*images.columns, LABEL])
            hint = "" if images.columns else "; fastdata-prep stores columns with --fields, annotations with --coco or --yolo"
            raise StoreError(f"{images.place} has no field {missing[0]}; it has {known}{hint}")
        if not 0 <= min_visible <= 1:
            raise ValueError(f"min_visible is {min_visible}, but a share lies between 0 and 1")
        groups = {images.columns[name].column.group for name in wanted if name != LABEL} - {None}
        boxes = (one.column for one in images.columns.values() if one.column.geometry == "xyxy")
        if min_visible and not any(column.name in wanted or column.group in groups for column in boxes):
            raise ValueError(
                f"min_visible is {min_visible}, but {', '.join(wanted)} of {images.place} have no boxes: fastdata-prep stores them "
                "with --coco or --yolo, or of a table with --fields NAME:xyxy (or xywh, cxcywh)"
            )
        return cls(wanted, isinstance(names, str), min_visible)

    def geometric(self, columns: Mapping[str, Values]) -> str | None:
        """Return the first field that follows the pixels, such as boxes; None: there is none."""
        return next((name for name in self.names if name != LABEL and columns[name].column.geometry), None)

    def batch(self, columns: Mapping[str, Values], rows: Array, labels: Array, move: Move) -> Any:
        """Return the targets of these rows.

        Args:
            columns: all columns of the images.
            rows: int64 [n].
            labels: of these rows.
            move: returns where points of the files come to lie in the outputs, and the sizes of these, for `move_boxes`.
        """
        found = {name: labels if name == LABEL else columns[name].batch(rows) for name in self.names}
        if any(columns[name].column.geometry or columns[name].column.group for name in self.names if name != LABEL):
            found = self._moved(found, columns, rows, *move())
        return found[self.names[0]] if self.single else found

    def _moved(
        self, found: dict[str, Any], columns: Mapping[str, Values], rows: Array, placed: Placement, sizes: Array
    ) -> dict[str, Any]:
        """Return the values with boxes and keypoints moved, and without the instances whose boxes are gone."""
        groups = {columns[name].column.group for name in self.names if name != LABEL}
        boxes = [name for name, values in columns.items() if values.column.geometry == "xyxy" and values.column.group in groups]
        moved: dict[str, Any] = {name: found[name] if name in found else columns[name].batch(rows) for name in boxes} | found
        remaining = dict[str | None, Array]()
        for name, batch in moved.items():
            column = None if name == LABEL else columns[name].column
            if column is None or column.geometry is None:
                continue
            values, of = (batch.values, batch.of) if isinstance(batch, Lists) else (batch, np.arange(len(rows)))
            if column.geometry == "xyxy":
                values, remaining[column.group] = move_boxes(values, of, placed, sizes, self.min_visible)
            else:
                values = move_keypoints(values, of, placed, sizes, column.names)
            moved[name] = batch._replace(values=values) if isinstance(batch, Lists) else values
        for name in found:
            group = None if name == LABEL else columns[name].column.group
            found[name] = moved[name].select(remaining[group]) if group in remaining and group is not None else moved[name]
        return found

    def batching(self, columns: Mapping[str, Values]) -> str | dict[str, str]:
        """Return how `Item` batches the target."""
        found = {name: "int64" if name == LABEL else _batching(columns[name].column) for name in self.names}
        return found[self.names[0]] if self.single else found

    def item(self, columns: Mapping[str, Values], row: int, label: Any, move: Move) -> Any:
        """Return the target of one row: numbers and text as Python has them, arrays and lists as tensors."""
        batch = replace(self, single=False).batch(columns, np.array([row]), np.zeros(1), move)
        found = {name: label if name == LABEL else _as_item(batch[name]) for name in self.names}
        return found[self.names[0]] if self.single else found


def _batching(column: Column) -> str:
    return "list" if column.type in TEXTS else "ragged" if column.many else column.type


def _as_item(batch: Array | Lists | list[Any]) -> Any:
    item = batch.values if isinstance(batch, Lists) else batch[0]
    if isinstance(item, np.ndarray):
        return torch.from_numpy(np.array(item))
    return item.item() if isinstance(item, np.generic) else item


class Columns(Mapping[str, Any]):
    """The columns of a dataset's samples, in its order. Each is read when it is asked for.

    An item is a numpy array [n, ...]; for lists, text, bytes and JSON, a list of n values.
    """

    def __init__(self, values: Mapping[str, Values], rows: Array, labels: Array) -> None:
        self._values = values
        self._rows = rows
        self._labels = labels

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            found = self._values[name].batch(self._rows)
            return items_of(found) if isinstance(found, Lists) else found
        if name == LABEL:
            return self._labels
        raise KeyError(f"there is no column {name}; there are {', '.join(self)}")

    def names(self, name: str) -> tuple[str, ...]:
        """Return what the numbers of a column stand for, such as COCO's categories, or the names of keypoints; () without names.

        Raises:
            KeyError: there is no such column.
        """
        if name not in self._values:
            raise KeyError(f"there is no column {name}; there are {', '.join(self._values)}")
        return self._values[name].column.names

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, LABEL])

    def __len__(self) -> int:
        return len(self._values) + 1
