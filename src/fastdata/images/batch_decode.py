"""Boxes of several JPEGs, decoded as one.

Cells of the restart grid are independent of each other, and the cuts of a batch share their tables. So those of equal width can
stand below each other in one JPEG: the decoder starts once for all of them, and stays in its own loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.images.jpeg import MAX_SIDE, decode_jpeg_into
from fastdata.images.jpeg_cut import Cells, find_cells, joined
from fastdata.images.pixels import LEAST_SHRUNK, Region, Window

__all__ = ["JpegBatch", "jpeg_batches"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST_PIXELS = 500_000  # of a batch, as decoded: more would leave the cache before they are used


class JpegBatch(NamedTuple):
    """Cells of one grid, width and scale. places: which of the records each belongs to."""

    shrink: int
    fast: bool
    places: list[int]
    cells: list[Cells]

    def decode(self, *, gray: bool, scratch: Callable[[int], Array]) -> list[tuple[int, Region]]:
        """(place, pixels that hold its window), [H, W, 1 or 4], in memory of `scratch`, both as for `decode_jpeg_into`.

        Raises:
            CodecError: the bytes of one of them are damaged.
        """
        times, below = self.shrink, sum(cells.end for cells in self.cells[:-1])
        size = -(-(below + self.cells[-1].height) // times), -(-self.cells[0].width // times)
        pixels = decode_jpeg_into(scratch, joined(self.cells), size, gray=gray, fast=self.fast)
        found, top = [], 0
        for place, cells in zip(self.places, self.cells, strict=True):
            found.append((place, Region(pixels[top : top - (-cells.height // times)], cells.top, cells.left, times)))
            top += cells.end // times
        return found


def jpeg_batches(
    records: Sequence[memoryview], sizes: Sequence[tuple[int, int]], windows: Sequence[Window]
) -> tuple[list[JpegBatch], list[int]]:
    """JPEG records of which a part is wanted, to be decoded together; and the places of those that are better decoded alone.

    Args:
        records: JPEGs; those with the index of docs/format.md can be.
        sizes: (height, width) that each should have.
        windows: what is wanted of each, perhaps nothing.
    """
    batches: list[JpegBatch] = []
    open_batches: dict[Any, tuple[JpegBatch, int]] = {}  # and the rows that each still takes
    alone = []
    for place, (data, size, window) in enumerate(zip(records, sizes, windows, strict=True)):
        part = window.height > 0 and window.width > 0 and window[2:4] != size
        cells = find_cells(data, *window[:4], of=size, exact=not window.fast) if part else None
        if cells is None:
            alone.append(place)
            continue
        shrink = window.shrink if max(cells.height, cells.width) > LEAST_SHRUNK else 1
        kind = (cells.grid.before, cells.grid.after, cells.width, shrink, window.fast, place if cells.bounded else None)
        batch, room = open_batches.get(kind, (None, 0))
        if batch is None or cells.end > room:
            batch, room = JpegBatch(shrink, window.fast, [], []), min(MOST_PIXELS * shrink**2 // cells.width, MAX_SIDE)
            batches.append(batch)
        batch.places.append(place)
        batch.cells.append(cells)
        open_batches[kind] = batch, room - cells.end
    return batches, alone
