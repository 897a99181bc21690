"""Read the arrays of a store, or their masks, chunk by chunk: for a crop, only the chunks that it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fastdata.arrays.sections import Box, touched
from fastdata.data.in_memory import InMemoryRecords
from fastdata.errors import FormatError, LoaderError
from fastdata.store.store import Store, StoreLocation, StoreSamples, Use
from fastdata.types import Array, StrPath


class StoreArrays(StoreSamples):
    """The arrays of a store, or their masks.

    Attributes:
        axes: number of axes that are cut into chunks: all but channels.
        sides: length of each array along these axes, int64 [n, axes].
        channels: number of channels of each array, int64 [n], or None without an axis of channels.
        records: the first chunks, copied into memory, or None if all are on disk.
    """

    def __init__(self, path: StrPath, *, mask: bool = False, expected: str | None = None) -> None:
        super().__init__(Store(path, "arrays", expected=expected))
        self.mask = mask
        self._variant, arrays = self.store.variant(mask=mask), self.store.manifest.section("arrays")
        self._chunk, self.axes = arrays.chunk, len(arrays.chunk)
        self._reader = self.store.reader(self._variant)
        self.dtype = np.dtype(self._variant.form.dtype)
        self._stored = self.dtype.newbyteorder("<")
        shapes = self.store.samples["shape"][:, : arrays.dims].astype(np.int64)
        self.sides: Array = shapes[:, arrays.channels :]
        self.channels: Array | None = shapes[:, 0] if arrays.channels and not mask else None
        self._first = self.store.samples["first"]
        self.records: InMemoryRecords | None = None

    def sizes(self) -> Array:
        """Return the bytes of each chunk, int64 [chunks]."""
        return self.store.index(self._variant).lengths

    def copy_to_memory(self, count: int, *, shared: bool) -> None:
        """Copy the first chunks into memory; if `shared`, once for all processes of this machine."""
        key = self.store.identity(self._variant) if shared else None
        self.records = InMemoryRecords(self.sizes()[:count], self.store.reader(self._variant, check=True).get, "chunk", key)
        self._reader = self.store.reader(self._variant)  # what the other had mapped counts as memory of this process

    def _get(self, chunk: int) -> memoryview:
        if self.records is not None and chunk < len(self.records):
            return self.records.get(chunk)
        return self._reader.get(chunk)

    def uses(self, rows: Array) -> list[Use]:
        """Return the shards of a remote store in which arrays lie."""
        return self.store.uses(self._variant, rows) if self.records is None else []

    def shape(self, row: int, sides: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a box with these sides, channels included."""
        return tuple(sides) if self.channels is None else (int(self.channels[row]), *sides)

    def read_boxes(self, rows: Array, boxes: tuple[Array, ...], outside: int, allocate: Callable[..., Array]) -> Array:
        """Read a box from each array: [n, ...]. boxes: starts and sides, int64 [n, axes], and axes to mirror, bool [n, axes]."""
        starts, sides, flips = (part.tolist() for part in boxes)
        shapes = {self.shape(row, side) for row, side in zip(rows.tolist(), sides, strict=True)}
        if len(shapes) != 1:
            found = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)[:4])
            raise LoaderError(
                f"a batch needs arrays of one shape, but these have {found}: give the dataset a crop, such as "
                "crop=fastdata.RandomCrop(64); if channels differ, make one store for each number of channels"
            )
        out = allocate((len(rows), *shapes.pop()), self.dtype)
        for row, start, flip, target in zip(rows.tolist(), starts, flips, out, strict=True):
            self.read(row, start, flip, target, outside)
        return out

    def read(self, row: int, start: Sequence[int], flips: Sequence[bool], out: Array, outside: int) -> None:
        """Copy a box of an array into `out`, [channels, ...] or [...]. Each value is copied once.

        Args:
            start: where the box begins along each axis.
            flips: along which axes to mirror it.
            outside: the value for places outside of the array.
        """
        shape = tuple(self.sides[row].tolist())
        sides = out.shape[out.ndim - self.axes :]
        low = tuple(max(a, 0) for a in start)
        high = tuple(min(a + n, side) for a, n, side in zip(start, sides, shape, strict=True))
        if any(b - a < n for a, b, n in zip(low, high, sides, strict=True)):
            out[...] = outside
        every: Box = () if self.channels is None else (slice(None),)
        upright = out[every + tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
        part = upright[every + tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))]
        first = int(self._first[row])
        channels = self.shape(row, ())
        get = self._reader.get if self.records is None else self._get
        for place, chunk, wanted, target in touched(shape, self._chunk, low, high):
            try:
                values = np.frombuffer(get(first + place), self._stored).reshape(channels + chunk)
            except ValueError:
                raise FormatError(
                    f"sample {row} of {self.store.location}: a chunk is not {self.dtype} {[*channels, *chunk]}; "
                    f"{self._reader.advice(first + place)}"
                ) from None
            part[every + target] = values[every + wanted]

    def __getstate__(self) -> tuple[Path | StoreLocation, bool, str, InMemoryRecords | None]:
        return self.store.location, self.mask, self.store.manifest.xxh3_128, self.records

    def __setstate__(self, state: tuple[Path | StoreLocation, bool, str, InMemoryRecords | None]) -> None:
        path, mask, expected, in_memory = state
        self.__init__(path, mask=mask, expected=expected)  # type: ignore[misc]
        self.records = in_memory
