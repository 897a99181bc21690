"""Long lists in little memory, as a plan may have 10^8 inputs; and the order of `--order shuffled`."""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import xxhash

from fastdata.errors import PrepError

T = TypeVar("T")
P = TypeVar("P", bound="Packed[Any]")
Array = np.ndarray[Any, np.dtype[np.int64]]

BLOCK = 32  # items that are compressed together: each that is asked for out of turn costs the unpacking of so many
SHUFFLE_SEED = 0  # it determines the bytes of a store, so it must never change


class Packed(Sequence[T]):
    """A sequence of values that pickle, held compressed. It can only grow. What it returns is not to be changed."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._data = bytearray()
        self._ends = array("Q", [0])  # of the blocks
        self._last: list[T] = []  # items that do not fill a block yet
        self._read: tuple[int, list[T]] = -1, []  # the block that was read last, and its number
        self._places: Sequence[int] | Array | None = None  # of the items, in their order; None: all, as they came
        self.extend(items)

    def append(self, item: T) -> None:
        """Add an item to the end."""
        self._last.append(item)
        if len(self._last) == BLOCK:
            self._data += zlib.compress(pickle.dumps(self._last, pickle.HIGHEST_PROTOCOL), 1)
            self._ends.append(len(self._data))
            self._last = []

    def extend(self, items: Iterable[T]) -> None:
        """Add items to the end."""
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return (len(self._ends) - 1) * BLOCK + len(self._last) if self._places is None else len(self._places)

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return self._item(found) if isinstance(found, int) else tuple(map(self._item, found))

    def __iter__(self) -> Iterator[T]:
        if self._places is not None:
            return map(self._item, range(len(self)))
        return (item for number in range(len(self._ends)) for item in self._block(number))

    def _item(self, index: int) -> T:
        number, place = divmod(index if self._places is None else int(self._places[index]), BLOCK)
        return self._block(number)[place]

    def _block(self, number: int) -> list[T]:
        if number == len(self._ends) - 1:
            return self._last
        read = self._read
        if read[0] != number:
            begin, end = self._ends[number : number + 2]
            self._read = read = number, pickle.loads(zlib.decompress(memoryview(self._data)[begin:end]))
        return read[1]

    def taken(self: P, places: Sequence[int] | Array) -> P:
        """Return the items at some places, which share their memory with this list. Those far apart take long to read."""
        chosen = copy(self)
        chosen._places = places if self._places is None else np.asarray(self._places)[places]
        return chosen


def shuffled(sources: Packed[Any], *, remote: bool = False) -> Packed[Any]:
    """Return inputs in an order that depends on their number alone: by the checksum of each one's place in the list."""
    kind, file = getattr(sources[0], "place", ())[:2] or ("", "") if sources else ("", "")  # an archive is not mixed with others
    if kind == "parquet" or (kind == "arrow" and remote):
        raise PrepError(
            f"{file} is unpacked in large pieces, and would be so once for each input: prepare it with --order listed, export the "
            "store (fastdata export), and prepare that with --order shuffled"
        )
    keys = (xxhash.xxh3_64_intdigest(k.to_bytes(8, "little"), SHUFFLE_SEED) for k in range(len(sources)))
    return Packed(sources.taken(np.argsort(np.fromiter(keys, np.uint64, len(sources)), kind="stable")))


def trimmed(item: Any) -> list[Any]:
    """Return the values of a dataclass without the defaults at their end."""
    kind: Any = type(item)
    row, defaults = list(vars(item).values()), _defaults(kind)
    while row and type(row[-1]) is type(default := defaults[len(row) - 1]) and row[-1] == default:
        row.pop()
    return row


@cache
def _defaults(kind: Any) -> tuple[Any, ...]:
    return tuple(one.default for one in fields(kind))  # MISSING equals nothing
