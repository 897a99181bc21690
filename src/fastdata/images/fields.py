"""Fields: which columns of its images a dataset emits as targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.data.targets import Lists
from fastdata.errors import StoreError
from fastdata.images.columns import Values, items_of

__all__ = ["LABEL", "Columns", "Fields"]

Array = np.ndarray[Any, np.dtype[Any]]

LABEL = "label"  # the field that is the image's label


@dataclass(frozen=True)
class Fields:
    """What a dataset emits as its targets.

    Attributes:
        names: of columns, or "label".
        single: whether the target is the value of the one name, not a dict.
    """

    names: tuple[str, ...]
    single: bool

    @classmethod
    def of(cls, names: str | Sequence[str], columns: Mapping[str, Values], place: str) -> Fields:
        """Return the fields of these names.

        Raises:
            StoreError: if there is no such column.
            ValueError: if there is no name, or one twice.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"fields is {names!r}, but must be the name of a column, or several different ones")
        if missing := [name for name in wanted if name not in columns and name != LABEL]:
            hint = "" if columns else "; fastdata-prep stores columns of a CSV with --fields NAME"
            raise StoreError(f"{place} has no field {missing[0]}; it has {', '.join([*columns, LABEL])}{hint}")
        return cls(wanted, isinstance(names, str))

    def batch(self, columns: Mapping[str, Values], rows: Array, labels: Array) -> Any:
        """Return the targets of these rows, whose labels are given."""
        found = {name: labels if name == LABEL else columns[name].batch(rows) for name in self.names}
        return found[self.names[0]] if self.single else found

    def item(self, columns: Mapping[str, Values], row: int, label: Any) -> Any:
        """Return the target of one row: numbers and text as Python has them, arrays and lists as tensors."""
        rows = np.array([row])
        found = {name: label if name == LABEL else _as_item(columns[name].batch(rows)) for name in self.names}
        return found[self.names[0]] if self.single else found


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

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, LABEL])

    def __len__(self) -> int:
        return len(self._values) + 1
