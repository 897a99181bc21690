"""Crop before decoding: cut a box of a JPEG on the restart grid out of its compressed bytes.

The cells that a box touches form a JPEG of their own, with their height and width in the header and renumbered restart markers.
So nothing outside them is entropy-decoded, transformed or converted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.codecs.jpeg_grid import read_index, scan_start

__all__ = ["Cells", "Cut", "cut_jpeg", "find_cells", "join_cells"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int]

SOI = b"\xff\xd8"
SOF0, EOI, DRI = 0xC0, 0xD9, 0xDD
MARGIN = 1  # pixel: interpolated colours depend on the next sample, half of which lies right next to the box
NARROW = 5  # libjpeg upsamples images narrower than this in another way
MOST_GRIDS = 4096  # cached headers, about 1 kB each
RESTARTS = (0xD0 + np.arange(8)).astype(np.uint8)


class Cut(NamedTuple):
    """A JPEG of `height` and `width`, whose first pixel is at (`top`, `left`) of the JPEG that it was cut from."""

    data: Array
    top: int
    left: int
    height: int
    width: int


class Grid(NamedTuple):
    """The header after the index, in two parts between which height and width belong, and the size of cells in pixels."""

    before: bytes
    after: bytes
    height: int
    width: int
    cell_height: int
    cell_width: int
    upsampled: bool  # the colours are stored at lower resolution


class Cells(NamedTuple):
    """The cells of a JPEG that contain a box: `height` x `width` pixels, the first at (`top`, `left`).

    Attributes:
        rows: the bytes of each row of cells.
        lengths: bytes of each cell, one row after another.
        bounded: whether pixels of the box depend on the image ending above or below: no cells of another image may be there.
    """

    grid: Grid
    rows: list[memoryview]
    lengths: Array
    top: int
    left: int
    height: int
    width: int
    bounded: bool

    @property
    def head(self) -> tuple[bytes, bytes]:
        """The JPEG's header, in two parts between which height and width belong."""
        return self.grid.before, self.grid.after

    @property
    def end(self) -> int:
        """The bottom of the cells: `height`, or more for an image's last row of cells, which may reach beyond it."""
        return len(self.rows) * self.grid.cell_height


def find_cells(
    data: bytes | memoryview, top: int, left: int, height: int, width: int, *, of: Shape | None = None, exact: bool = True
) -> Cells | None:
    """Return the fewest cells that decode, inside the box, to exactly the pixels of the whole JPEG.

    Args:
        of: (height, width) that the image should have.
        exact: False: for a decoder that repeats samples of colour instead of interpolating them; slightly fewer cells.

    Returns:
        None if there is no index, or if it, the box or `of` does not fit the file: decode the whole.
    """
    index = read_index(data)
    if index is None:
        return None
    lengths, index_end = index
    grid, scan = _read_grid(data, index_end)
    if grid is None or top + height > grid.height or left + width > grid.width:
        return None
    _, _, full_height, full_width, tall, wide, upsampled = grid
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
        grid,
        [body[a:b] for a, b in zip(starts, stops, strict=True)],
        lengths.reshape(-1, columns)[row:row_end, column:column_end].ravel(),
        top=row * tall,
        left=column * wide,
        height=min(row_end * tall, full_height) - row * tall,
        width=min(column_end * wide, full_width) - column * wide,
        bounded=top < margin or top + height + margin > full_height,
    )


def join_cells(parts: Sequence[Cells]) -> Array:
    """Return a JPEG of cells of one header and width, stacked vertically: each part starts at the `end` of the one before."""
    first, last = parts[0], parts[-1]
    height = sum(cells.end for cells in parts) - last.end + last.height
    before, after = first.head
    head = b"".join((before, _SIDES.pack(height, first.width), after))
    out = np.frombuffer(bytearray().join([head, *(row for cells in parts for row in cells.rows)]), np.uint8)
    markers = np.concatenate([cells.lengths for cells in parts]).cumsum()
    markers += len(head) - 1
    out[markers] = RESTARTS[np.arange(len(markers)) & 7]
    out[-1] = EOI
    return out


def cut_jpeg(
    data: bytes | memoryview, top: int, left: int, height: int, width: int, *, of: Shape | None = None, exact: bool = True
) -> Cut | None:
    """Return the cells that `find_cells` finds as a JPEG; None if it finds none."""
    cells = find_cells(data, top, left, height, width, of=of, exact=exact)
    return cells and Cut(join_cells([cells]), cells.top, cells.left, cells.height, cells.width)


_SIDES = struct.Struct(">HH")
_grids: dict[bytes, Grid | None] = {}
_lengths: set[int] = set()  # of the headers in `_grids`: usually one, as the images of a store share it


def _read_grid(data: bytes | memoryview, at: int) -> tuple[Grid | None, int]:
    """Return the grid, and where the scan begins, from `at`, the index's end. Headers are cached: a store's images share them."""
    for length in tuple(_lengths):
        found = _grids.get(bytes(data[at : at + length]))
        if found is not None:
            return found, at + length
    try:
        scan = scan_start(data, at)
        grid = _parse(bytes(data[at:scan]))
    except (IndexError, struct.error):
        return None, at
    if len(_grids) >= MOST_GRIDS:
        _grids.clear()
        _lengths.clear()
    _grids[bytes(data[at:scan])] = grid
    _lengths.add(scan - at)
    return grid, scan


def _parse(header: bytes) -> Grid | None:
    at = 0
    places = {}
    while at < len(header):
        places[header[at + 1]] = at
        at += 2 + int.from_bytes(header[at + 2 : at + 4], "big")
    if SOF0 not in places or DRI not in places:
        return None
    frame, interval = places[SOF0], int.from_bytes(header[places[DRI] + 4 :][:2], "big")
    height, width = _SIDES.unpack_from(header, frame + 5)
    components, factors = header[frame + 9], header[frame + 11]  # the first component's; the others have 1
    across, down = (factors >> 4, factors & 15) if components > 1 else (1, 1)
    if (across, down) not in ((1, 1), (2, 2)):  # 4:4:4 or grey, 4:2:0: with others, neighbours matter at smaller scales too
        return None
    if not interval or -(-width // (8 * across)) % interval:  # its segments are no cells, but may go on in the next row
        return None
    return Grid(
        before=SOI + header[: frame + 5],
        after=header[frame + 9 :],
        height=height,
        width=width,
        cell_height=8 * down,
        cell_width=8 * across * interval,
        upsampled=across > 1,
    )
