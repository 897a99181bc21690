"""Several sources one after another, which keeps the fast path for concatenated datasets."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastdata.codecs.jpeg_crop import Cut
from fastdata.codecs.pixels import Region, Window
from fastdata.images.columns import ConcatValues, Values
from fastdata.images.geometry import Placement
from fastdata.images.records import Images, Scratch
from fastdata.shared_memory import SharedArray
from fastdata.store.place import Use

__all__ = ["ConcatImages"]

Array = np.ndarray[Any, np.dtype[Any]]


class ConcatImages:
    """The images of several sources, as one source.

    Args:
        parts: sources, each with the rows of it to use, in order; None: all rows.

    Raises:
        ValueError: if their labels, channels or dtypes differ.
    """

    def __init__(self, parts: Sequence[tuple[Images, SharedArray | None]]) -> None:
        self._parts = list(parts)
        first = self._parts[0][0]
        self.form = first.form
        self.labels = first.labels
        for images, _ in self._parts[1:]:
            if images.labels != first.labels or replace(images.form, codec=first.form.codec) != first.form:
                raise ValueError(
                    f"datasets of {_described(first)} and of {_described(images)} do not go together: prepare the second with "
                    "--classes of the first, and the same --gray, --bits and --mask-bits"
                )
        counts = [len(images) if rows is None else len(rows.array) for images, rows in self._parts]
        self._starts = np.cumsum([0, *counts]).tolist()
        self._targets: Array | None = None  # made once per process, and not pickled

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_targets": None}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def targets(self) -> Array:
        if self._targets is None:
            parts = [images.targets if rows is None else images.targets[rows.array] for images, rows in self._parts]
            self._targets = np.concatenate(parts)
        return self._targets

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
        scale, shift = np.empty((len(ids), 2)), np.empty((len(ids), 2))
        part = np.searchsorted(self._starts, ids, "right") - 1
        for k in np.unique(part).tolist():
            images, rows = self._parts[k]
            local = ids[part == k] - self._starts[k]
            found = images.placement(local if rows is None else rows.array[local])
            scale[part == k], shift[part == k] = found.scale, found.shift
        return Placement(scale, shift)

    def sides(self, ids: Array) -> tuple[Array, Array]:
        heights, widths = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        part = np.searchsorted(self._starts, ids, "right") - 1
        for k in np.unique(part).tolist():
            images, rows = self._parts[k]
            local = ids[part == k] - self._starts[k]
            heights[part == k], widths[part == k] = images.sides(local if rows is None else rows.array[local])
        return heights, widths

    def _parts_of(self, ids: Array) -> Iterator[tuple[Images, Array, Array]]:
        """Yield the sources that have some of these images, which of them, and their numbers there."""
        part = np.searchsorted(self._starts, ids, "right") - 1
        for k in np.unique(part).tolist():
            images, rows = self._parts[k]
            places = np.flatnonzero(part == k)
            local = ids[places] - self._starts[k]
            yield images, places, local if rows is None else rows.array[local]

    def uses(self, ids: Array) -> list[Use]:
        found = [(places, use) for images, places, local in self._parts_of(ids) for use in images.uses(local)]
        return [use._replace(samples=places[use.samples]) for places, use in found]

    def _find(self, index: int) -> tuple[Images, int]:
        k = bisect.bisect_right(self._starts, index) - 1
        images, rows = self._parts[k]
        local = index - self._starts[k]
        return images, local if rows is None else int(rows.array[local])

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
        part = np.searchsorted(self._starts, rows, "right") - 1
        before = np.cumsum([0, *(images.num_shards for images, _ in self._parts)])
        for k in np.unique(part).tolist():
            images, chosen = self._parts[k]
            local = rows[part == k] - self._starts[k]
            shards[part == k] = before[k] + images.shards_of(local if chosen is None else chosen.array[local])
        return shards

    def with_size(self, size: int | None) -> ConcatImages:
        return ConcatImages([(images.with_size(size), rows) for images, rows in self._parts])


def _described(images: Images) -> str:
    labels = f"{len(images.labels.names)} classes" if images.labels.kind == "class" else f"labels of kind {images.labels.kind!r}"
    return f"{labels}, {images.form.channels} x {images.form.dtype}"
