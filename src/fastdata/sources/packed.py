"""Long lists in little memory: a plan may have 10^8 inputs."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np

__all__ = ["Packed", "PackedInputs", "packed_inputs", "trimmed"]

T = TypeVar("T")
P = TypeVar("P", bound="Packed[Any]")
Array = np.ndarray[Any, np.dtype[np.int64]]


class Packed(Sequence[T]):
    """A sequence of values that are held as bytes, and made anew each time they are asked for.

    Args:
        items: plain values, such as lists of text. They are taken one at a time.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._data = bytearray()
        self._ends = array("Q", [0])
        self._places: Array | None = None  # of the items, in their order; None: all, as they came
        for item in items:
            self._data += pickle.dumps(self._plain(item), pickle.HIGHEST_PROTOCOL)
            self._ends.append(len(self._data))

    def _plain(self, item: T) -> Any:
        return item

    def _made(self, plain: Any) -> T:
        made: T = plain
        return made

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._places is None else len(self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        found = range(len(self))[index]
        return self._item(found) if isinstance(found, int) else tuple(map(self._item, found))

    def __iter__(self) -> Iterator[T]:
        if self._places is not None:
            return map(self._item, range(len(self)))
        view = memoryview(self._data)
        return (self._made(pickle.loads(view[begin:end])) for begin, end in pairwise(self._ends))

    def _item(self, index: int) -> T:
        place = index if self._places is None else int(self._places[index])
        return self._made(pickle.loads(memoryview(self._data)[self._ends[place] : self._ends[place + 1]]))

    def taken(self: P, places: Array) -> P:
        """Return the items at some places, which share their memory with this list."""
        chosen = copy(self)
        chosen._places = places if self._places is None else self._places[places]
        return chosen


class PackedInputs(Packed[T]):
    """The same for dataclasses, such as inputs: some 25 bytes each besides their text."""

    def __init__(self, items: Iterable[T]) -> None:
        self._numbers: dict[type[Any], int] = {}
        self._classes: list[type[Any]] = []
        super().__init__(items)

    def _plain(self, item: T) -> Any:
        kind = type(item)
        if kind not in self._numbers:
            self._numbers[kind] = len(self._classes)
            self._classes.append(kind)
        return (self._numbers[kind], *trimmed(item))

    def _made(self, plain: Any) -> T:
        number, *row = plain
        made: T = self._classes[number](*row)
        return made


def packed_inputs(items: Sequence[T]) -> PackedInputs[T]:
    """Return a list that is packed, which it may be already."""
    return items if isinstance(items, PackedInputs) else PackedInputs(items)


def trimmed(item: Any) -> list[Any]:
    """Return the values of a dataclass without the defaults at their end."""
    kind: Any = type(item)
    row = list(vars(item).values())
    defaults: tuple[Any, ...] = _defaults(kind)
    end = len(row)
    while end and type(row[end - 1]) is type(defaults[end - 1]) and row[end - 1] == defaults[end - 1]:
        end -= 1
    return row[:end]


@cache
def _defaults(kind: Any) -> tuple[Any, ...]:
    return tuple(
        one.default if one.default_factory is MISSING else one.default_factory()  # MISSING equals nothing
        for one in fields(kind)
    )
