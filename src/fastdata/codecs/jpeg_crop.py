"""Crop before decoding: cut boxes of JPEGs on the restart grid out of the compressed bytes, and decode all cuts of a batch at once.

The cells that a box touches form a JPEG of their own, with their height and width in the header and renumbered restart markers.
The images of a store share their tables, so cells of equal width can be stacked: the decoder starts once for all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.codecs.jpeg_grid import MAX_SIDE, decode_jpeg_into, read_index, scan_start
from fastdata.types import Array

Shape = tuple[int, int]

SOI = b"\xff\xd8"
SOF0, EOI, DRI = 0xC0, 0xD9, 0xDD
MARGIN = 1  # pixel: interpolated colours depend on the next sample, half of which lies right next to the box
NARROW = 5  # libjpeg upsamples images narrower than this in another way
MIN_SHRUNK_SIDE = 8  # pixels: in smaller images, two scales give the same size
MAX_BATCH_PIXELS = 500_000  # more would be evicted from the cache before they are used
MAX_GRIDS = 4096  # cached headers, about 1 kB each
RESTARTS = (0xD0 + np.arange(8)).astype(np.uint8)
SIDES = struct.Struct(">HH")


class Window(NamedTuple):
    """The part of an image that is needed: a box inside it, in its pixels.

    shrink: 2, 4 or 8 if so many pixels per side may be merged into one, which JPEG decoders do for free. fast: decode less exactly.
    """

    top: int
    left: int
    height: int
    width: int
    shrink: int = 1
    fast: bool = False

    @property
    def empty(self) -> bool:
        return self.height <= 0 or self.width <= 0

    @property
    def area(self) -> int:
        return self.height * self.width


class Region(NamedTuple):
    """Pixels that contain a window, [H, W, C]. The first is at (top, left) of the image; each merges `shrink` x `shrink` pixels."""

    pixels: Array
    top: int = 0
    left: int = 0
    shrink: int = 1


class Grid(NamedTuple):
    """The header after the index, as the parts before and after height and width, and the size of a cell in pixels."""

    head: tuple[bytes, bytes]
    height: int
    width: int
    cell_height: int
    cell_width: int
    upsampled: bool  # the colours are stored at lower resolution


class Cells(NamedTuple):
    """The cells of a JPEG that contain a box: `height` x `width` pixels, the first at (`top`, `left`)."""

    head: tuple[bytes, bytes]  # the JPEG's header, as in Grid
    rows: list[memoryview]  # the bytes of each row of cells
    lengths: Array  # bytes of each cell, one row after another
    top: int
    left: int
    height: int
    width: int
    end: int  # the bottom of the cells: `height`, or more for an image's last row of cells, which may reach beyond it
    bounded: bool  # whether pixels depend on the image ending above or below: no cells of another image may be there


def find_cells(
    data: bytes | memoryview, top: int, left: int, height: int, width: int, *, of: Shape | None = None, exact: bool = True
) -> Cells | None:
    """Return the fewest cells that decode, inside the box, to exactly the pixels of the whole JPEG.

    Return None if the whole has to be decoded: there is no index, or the index, the box or `of` (the image's height and width)
    does not fit the file. exact: False if the decoder repeats colour samples instead of interpolating them: fewer cells suffice.
    """
    index = read_index(data)
    if index is None:
        return None
    lengths, index_end = index
    grid, scan = _read_grid(data, index_end)
    if grid is None or top + height > grid.height or left + width > grid.width:
        return None
    head, full_height, full_width, tall, wide, upsampled = grid
    if of is not None and of != (full_height, full_width):
        return None
    columns = -(-full_width // wide)
    ends = lengths.cumsum()
    if len(lengths) != columns * -(-full_height // tall) or ends[-1] != len(data) - scan:
        return None
    margin = MARGIN if exact and upsampled else 0
    row, row_end = max(top - margin, 0) // tall, -(-min(top + height + margin, full_height) // tall)
    column, column_end = max(left - margin, 0) // wide, -(-min(left + width + margin, full_width) // wide)
    if margin and column and full_width - column * wide < NARROW:
        column -= 1
    starts = (ends - lengths)[row * columns + column : row_end * columns : columns].tolist()
    stops = ends[row * columns + column_end - 1 : row_end * columns : columns].tolist()
    body = memoryview(data)[scan:]
    return Cells(
        head,
        [body[a:b] for a, b in zip(starts, stops, strict=True)],
        lengths.reshape(-1, columns)[row:row_end, column:column_end].ravel(),
        top=row * tall,
        left=column * wide,
        height=min(row_end * tall, full_height) - row * tall,
        width=min(column_end * wide, full_width) - column * wide,
        end=(row_end - row) * tall,
        bounded=top < margin or top + height + margin > full_height,
    )


def join_cells(parts: Sequence[Cells]) -> Array:
    """Return a JPEG of cells of one header and width, stacked vertically: each part starts at the `end` of the one before."""
    before, after = parts[0].head
    height = sum(cells.end for cells in parts[:-1]) + parts[-1].height
    head = b"".join((before, SIDES.pack(height, parts[0].width), after))
    out = np.frombuffer(bytearray().join([head, *(row for cells in parts for row in cells.rows)]), np.uint8)
    markers = np.concatenate([cells.lengths for cells in parts]).cumsum()
    markers += len(head) - 1
    out[markers] = RESTARTS[np.arange(len(markers)) & 7]
    out[-1] = EOI
    return out


class JpegBatch(NamedTuple):
    """Cells of one header, width and scale. positions: the record that each belongs to."""

    shrink: int
    fast: bool
    positions: list[int]
    cells: list[Cells]

    def decode(self, data: Array, *, gray: bool, scratch: Callable[[int], Array]) -> list[tuple[int, Region]]:
        """Decode what `join_cells` makes of all cells, and return pairs: a record's position, and the region with its window."""
        shrink = self.shrink
        above = sum(cells.end for cells in self.cells[:-1])
        size = -(-(above + self.cells[-1].height) // shrink), -(-self.cells[0].width // shrink)
        pixels = decode_jpeg_into(scratch, data, size, gray=gray, fast=self.fast)
        regions = []
        top = 0
        for position, cells in zip(self.positions, self.cells, strict=True):
            regions.append((position, Region(pixels[top : top - (-cells.height // shrink)], cells.top, cells.left, shrink)))
            top += cells.end // shrink
        return regions


def jpeg_batches(
    records: Sequence[bytes | memoryview], sizes: Sequence[Shape], windows: Sequence[Window]
) -> tuple[list[JpegBatch], list[int]]:
    """Group JPEG records of which only a part is needed into batches. Also return the indices of records to decode alone.

    records: JPEGs; records with the index of docs/format.md can be batched. sizes: the (height, width) that each should have.
    windows: the part of each that is needed, which may be empty.
    """
    batches: list[JpegBatch] = []
    open_batches: dict[Any, tuple[JpegBatch, int]] = {}  # each with the rows that still fit in
    alone = []
    for position, (data, size, window) in enumerate(zip(records, sizes, windows, strict=True)):
        part = not window.empty and window[2:4] != size
        cells = find_cells(data, *window[:4], of=size, exact=not window.fast) if part else None
        if cells is None:
            alone.append(position)
            continue
        shrink = window.shrink if max(cells.height, cells.width) > MIN_SHRUNK_SIDE else 1
        kind = (cells.head, cells.width, shrink, window.fast, position if cells.bounded else None)
        batch, room = open_batches.get(kind, (None, 0))
        if batch is None or cells.end > room:
            batch = JpegBatch(shrink, window.fast, [], [])
            room = min(MAX_BATCH_PIXELS * shrink**2 // cells.width, MAX_SIDE)
            batches.append(batch)
        batch.positions.append(position)
        batch.cells.append(cells)
        open_batches[kind] = batch, room - cells.end
    return batches, alone


_grids: dict[bytes, Grid | None] = {}
_lengths: set[int] = set()  # of the headers in `_grids`: usually one, as the images of a store share it


def _read_grid(data: bytes | memoryview, at: int) -> tuple[Grid | None, int]:
    """Return the grid, and where the scan begins. at: the end of the index. Headers are cached: a store's images share them."""
    for length in tuple(_lengths):
        found = _grids.get(bytes(data[at : at + length]))
        if found is not None:
            return found, at + length
    try:
        scan = scan_start(data, at)
        grid = _parse(bytes(data[at:scan]))
    except (IndexError, struct.error):
        return None, at
    if len(_grids) >= MAX_GRIDS:
        _grids.clear()
        _lengths.clear()
    _grids[bytes(data[at:scan])] = grid
    _lengths.add(scan - at)
    return grid, scan


def _parse(header: bytes) -> Grid | None:
    at, segments = 0, {}
    while at < len(header):
        segments[header[at + 1]] = at
        at += 2 + int.from_bytes(header[at + 2 : at + 4], "big")
    if SOF0 not in segments or DRI not in segments:
        return None
    frame, interval = segments[SOF0], int.from_bytes(header[segments[DRI] + 4 :][:2], "big")
    height, width = SIDES.unpack_from(header, frame + 5)
    components, factors = header[frame + 9], header[frame + 11]  # the first component's; the others have 1
    across, down = (factors >> 4, factors & 15) if components > 1 else (1, 1)
    if (across, down) not in ((1, 1), (2, 2)):  # 4:4:4 or grey, 4:2:0: with others, neighbours matter at smaller scales too
        return None
    if not interval or -(-width // (8 * across)) % interval:  # its segments are no cells, but may go on in the next row
        return None
    head = SOI + header[: frame + 5], header[frame + 9 :]
    return Grid(head, height, width, 8 * down, 8 * across * interval, across > 1)
