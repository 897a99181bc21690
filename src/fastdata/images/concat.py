"""Datasets one after another: their images, and the values of their columns, as those of one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import structs

from fastdata.codecs.jpeg_crop import Cut
from fastdata.codecs.pixels import Region, Window
from fastdata.data.targets import Lists
from fastdata.images.columns import Values, items_of
from fastdata.images.geometry import Placement
from fastdata.images.records import Images, Scratch
from fastdata.store.column import TEXTS
from fastdata.store.store import Use
from fastdata.system.shared_memory import SharedArray

__all__ = ["ConcatImages", "ConcatValues"]

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T", bound=Sized)


class _Concat(Generic[T]):
    """Several sources, as one.

    Args:
        parts: sources, each with the rows of it to use, in order; None: all rows.
    """

    def __init__(self, parts: Sequence[tuple[T, SharedArray | None]]) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *(len(source) if rows is None else len(rows.array) for source, rows in parts)]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _split(self, ids: Array) -> Iterator[tuple[int, T, Array, Array]]:
        """Yield the number of each source that has some of these rows, the source, which of them, and their numbers there."""
        part = np.searchsorted(self._starts, ids, "right") - 1
        for k in np.unique(part).tolist():
            source, rows = self._parts[k]
            places = np.flatnonzero(part == k)
            local = ids[places] - self._starts[k]
            yield k, source, places, local if rows is None else rows.array[local]

    def _gather(self, ids: Array, take: Callable[[T, Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Return the arrays that `take` returns for rows of a source, for rows of all of them."""
        if not len(ids):
            return take(self._parts[0][0], ids)
        parts = [(places, take(source, local)) for _, source, places, local in self._split(ids)]
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        return tuple(np.concatenate(each)[order] for each in zip(*(arrays for _, arrays in parts), strict=True))

    def _find(self, index: int) -> tuple[T, int]:
        k = bisect.bisect_right(self._starts, index) - 1
        source, rows = self._parts[k]
        local = index - self._starts[k]
        return source, local if rows is None else int(rows.array[local])


class ConcatImages(_Concat[Images]):
    """The images of several sources, as one source.

    Raises:
        ValueError: if their labels, channels or dtypes differ.
    """

    def __init__(self, parts: Sequence[tuple[Images, SharedArray | None]]) -> None:
        super().__init__(parts)
        first = self._parts[0][0]
        self.form = first.form
        self.labels = first.labels
        for images, _ in self._parts[1:]:
            if images.labels != first.labels or structs.replace(images.form, codec=first.form.codec) != first.form:
                raise ValueError(
                    f"datasets of {_described(first)} and of {_described(images)} do not go together: prepare the second with "
                    "--classes of the first, and the same --gray, --bits and --mask-bits"
                )
        targets = [images.targets if rows is None else images.targets[rows.array] for images, rows in self._parts]
        self._targets = SharedArray.of(np.concatenate(targets))

    @property
    def targets(self) -> Array:
        return self._targets.array

    @property
    def columns(self) -> dict[str, Values]:
        """The columns that all sources have."""
        names = set.intersection(*(set(images.columns) for images, _ in self._parts))
        return {
            name: ConcatValues([(images.columns[name], rows) for images, rows in self._parts])
            for name in self._parts[0][0].columns
            if name in names
        }

    def placement(self, ids: Array) -> Placement:
        def take(images: Images, local: Array) -> tuple[Array, ...]:
            placed = images.placement(local)
            return placed.scale, placed.shift

        return Placement(*self._gather(ids, take))

    def sides(self, ids: Array) -> tuple[Array, Array]:
        heights, widths = self._gather(ids, lambda images, local: images.sides(local))
        return heights, widths

    def uses(self, ids: Array) -> list[Use]:
        found = [(places, use) for _, images, places, local in self._split(ids) for use in images.uses(local)]
        return [use._replace(samples=places[use.samples]) for places, use in found]

    def get(self, index: int) -> memoryview:
        images, local = self._find(index)
        return images.get(local)

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Region:
        images, local = self._find(index)
        return images.decode(local, data, window, scratch)

    @property
    def jpegs(self) -> bool:
        return any(images.jpegs for images, _ in self._parts)

    @property
    def indexed(self) -> bool:
        return all(images.indexed for images, _ in self._parts)

    def jpeg(self, index: int, data: memoryview, window: Window) -> Cut | None:
        images, local = self._find(index)
        return images.jpeg(local, data, window)

    @property
    def place(self) -> str:
        places = list(dict.fromkeys(images.place for images, _ in self._parts))
        return " + ".join(places) if len(places) < 4 else f"{len(places)} stores"

    def name(self, index: int) -> str:
        images, local = self._find(index)
        return images.name(local)

    @property
    def num_shards(self) -> int:
        return sum(images.num_shards for images, _ in self._parts)

    def shards_of(self, rows: Array) -> Array:
        shards = np.empty(len(rows), np.int64)
        before = np.cumsum([0, *(images.num_shards for images, _ in self._parts)])
        for k, images, places, local in self._split(rows):
            shards[places] = before[k] + images.shards_of(local)
        return shards

    def with_size(self, size: int | None) -> ConcatImages:
        return ConcatImages([(images.with_size(size), rows) for images, rows in self._parts])


class ConcatValues(_Concat[Values]):
    """The values of a column of several sources.

    Raises:
        ValueError: if they are of different types.
    """

    def __init__(self, parts: Sequence[tuple[Values, SharedArray | None]]) -> None:
        super().__init__(parts)
        self.column = parts[0][0].column
        for values, _ in parts[1:]:
            if structs.replace(values.column, ids=self.column.ids) != self.column:
                raise ValueError(f"datasets whose columns are {self.column} and {values.column} cannot be concatenated")

    def batch(self, rows: Array) -> Array | Lists | list[Any]:
        items: list[Any] = [None] * len(rows)
        for _, values, places, local in self._split(rows):
            for place, item in zip(places.tolist(), items_of(values.batch(local)), strict=True):
                items[place] = item
        if self.column.type in TEXTS:
            return items
        if not self.column.many:
            return np.array(items, self.column.dtype).reshape(len(rows), *self.column.shape)
        offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int64)
        return Lists(np.concatenate([np.empty((0, *self.column.shape), self.column.dtype), *items]), offsets)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._parts[0][0].decode(tokens)


def _described(images: Images) -> str:
    labels = f"{len(images.labels.names)} classes" if images.labels.kind == "class" else f"labels of kind {images.labels.kind!r}"
    return f"{labels}, {images.form.channels} x {images.form.dtype}"
