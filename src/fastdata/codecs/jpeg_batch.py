"""Decode boxes of several JPEGs as one JPEG.

Cells of the restart grid are independent of each other, and the cuts of a batch share their tables. So cells of equal width can
be stacked in one JPEG: the decoder starts once for all of them, and stays in its inner loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.codecs.jpeg_crop import Cells, find_cells, join_cells
from fastdata.codecs.jpeg_grid import MAX_SIDE, decode_jpeg_into
from fastdata.codecs.pixels import LEAST_SHRUNK, Region, Window

__all__ = ["JpegBatch", "jpeg_batches"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST_PIXELS = 500_000  # of a decoded batch: more would be evicted from the cache before they are used


class JpegBatch(NamedTuple):
    """Cells of one grid, width and scale. places: the record that each belongs to."""

    shrink: int
    fast: bool
    places: list[int]
    cells: list[Cells]

    def join(self) -> Array:
        """Return the JPEG of all cells, uint8."""
        return join_cells(self.cells)

    def decode(self, data: Array, *, gray: bool, scratch: Callable[[int], Array]) -> list[tuple[int, Region]]:
        """Decode to (place, region that contains its window) pairs, [H, W, 1 or 4], in memory of `scratch`; see `decode_jpeg_into`.

        Args:
            data: the result of `join`.

        Raises:
            CodecError: if the bytes of one of them are damaged.
        """
        shrink = self.shrink
        above = sum(cells.end for cells in self.cells[:-1])
        size = -(-(above + self.cells[-1].height) // shrink), -(-self.cells[0].width // shrink)
        pixels = decode_jpeg_into(scratch, data, size, gray=gray, fast=self.fast)
        regions = []
        top = 0
        for place, cells in zip(self.places, self.cells, strict=True):
            regions.append((place, Region(pixels[top : top - (-cells.height // shrink)], cells.top, cells.left, shrink)))
            top += cells.end // shrink
        return regions


def jpeg_batches(
    records: Sequence[memoryview], sizes: Sequence[tuple[int, int]], windows: Sequence[Window]
) -> tuple[list[JpegBatch], list[int]]:
    """Group JPEG records of which a part is needed into batches. Also return the places of those to decode alone.

    Args:
        records: JPEGs; those with the index of docs/format.md can be batched.
        sizes: the (height, width) that each should have.
        windows: the part of each that is needed; may be empty.
    """
    batches: list[JpegBatch] = []
    open_batches: dict[Any, tuple[JpegBatch, int]] = {}  # each with the rows that still fit in
    alone = []
    for place, (data, size, window) in enumerate(zip(records, sizes, windows, strict=True)):
        part = not window.empty and window[2:4] != size
        cells = find_cells(data, *window[:4], of=size, exact=not window.fast) if part else None
        if cells is None:
            alone.append(place)
            continue
        shrink = window.shrink if max(cells.height, cells.width) > LEAST_SHRUNK else 1
        kind = (cells.head, cells.width, shrink, window.fast, place if cells.bounded else None)
        batch, room = open_batches.get(kind, (None, 0))
        if batch is None or cells.end > room:
            batch = JpegBatch(shrink, window.fast, [], [])
            room = min(MOST_PIXELS * shrink**2 // cells.width, MAX_SIDE)
            batches.append(batch)
        batch.places.append(place)
        batch.cells.append(cells)
        open_batches[kind] = batch, room - cells.end
    return batches, alone
