"""jpeg-yuv420: JPEG files with a scan for each plane, which decode to the planes of yuv420.

Luma, Cb and Cr are scans of one baseline JPEG. Each is cut and decoded as a grey JPEG, so that nothing is interpolated or
converted. A restart marker follows every fourth block of 8 x 8, wherever the rows of blocks begin: whether a width has a divisor
plays no part. So the segments that contain a row of a box begin up to three blocks before it, and rows are aligned after decoding.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.errors import CodecError
from fastdata.images.jpeg import MAX_SIDE, decode_jpeg_into, index_segments, read_index, scan_start, segment_lengths
from fastdata.images.planes import encode_planes, pad_even, split_planes

__all__ = ["PlaneCells", "encode_jpeg_planes", "find_planes", "whole_planes"]

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 8  # pixels of a plane
INTERVAL = 4  # blocks between restart markers
SOI, EOI = b"\xff\xd8", b"\xff\xd9"
SOF0, DHT, SOS, DQT, DRI, APP0 = 0xC0, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0
SAMPLING = b"\x22\x11\x11"  # luma has twice the resolution of the colours
COMPONENTS = b"\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"  # number, sampling and quantization table of each
BETWEEN = 8  # bytes between two scans: the header of the second without its marker, which ends the first
MOST_HEADERS = 4096  # cached, about 2 kB each

# Quantization tables of quality 50: ITU-T T.81, tables K.1 and K.2, row by row
LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99),
    *[99] * 32,
)


def encode_jpeg_planes(image: Array, *, quality: int = 90) -> bytes:
    """Encode RGB uint8 [H, W, 3] as a JPEG with a scan for each plane. An odd last row or column is repeated.

    Raises:
        CodecError: if the image is larger than a JPEG can be.
    """
    image = pad_even(image)
    height, width = image.shape[:2]
    if max(height, width) > MAX_SIDE:
        raise CodecError(f"{width} x {height} pixels: a JPEG holds at most {MAX_SIDE} a side; give a --size", "too-large")
    luma, chroma = split_planes(encode_planes(image), height, width)
    files = [_grey(luma[:, :, 0], LUMA, quality), *(_grey(chroma[:, :, k], CHROMA, quality) for k in range(2))]
    (first, _), (second, _), _ = files
    lengths = np.concatenate([segment_lengths(np.frombuffer(scan, np.uint8)) for _, scan in files])
    quantizers = first[DQT][0], first[DQT][0][:4] + b"\x01" + second[DQT][0][5:]
    frame = b"\xff\xc0\x00\x11\x08" + _SIDES.pack(height, width) + COMPONENTS
    head = [SOI, *first[APP0], index_segments(lengths), *quantizers, frame, *first[DHT], *first[DRI]]
    scans = (_scan_head(number) + scan[: -len(EOI)] for number, (_, scan) in enumerate(files, 1))
    return b"".join([*head, *scans, EOI])


def _grey(plane: Array, table: tuple[int, ...], quality: int) -> tuple[dict[int, list[bytes]], bytes]:
    """Encode a plane as a grey JPEG. Return its segments by marker, and its entropy-coded data with the end of the image."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality  # as libjpeg's jpeg_quality_scaling
    scaled = [min(max((step * scale + 50) // 100, 1), 255) for step in table]
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(plane)).save(file, "JPEG", qtables=[scaled], restart_marker_blocks=INTERVAL)
    data = file.getvalue()
    scan = scan_start(data, len(SOI))
    return _segments(data[len(SOI) : scan]), data[scan:]


def _segments(header: bytes) -> dict[int, list[bytes]]:
    """Return the segments of a header by marker."""
    found = dict[int, list[bytes]]()
    at = 0
    while at < len(header):
        end = at + 2 + int.from_bytes(header[at + 2 : at + 4], "big")
        found.setdefault(header[at + 1], []).append(header[at:end])
        at = end
    return found


def _scan_head(number: int) -> bytes:
    return b"\xff\xda\x00\x08\x01" + bytes([number]) + b"\x00\x00\x3f\x00"


class Plane(NamedTuple):
    """A plane as a grey JPEG: its header, in two parts between which height and width belong; its sides in pixels and in blocks."""

    head: tuple[bytes, bytes]
    height: int
    width: int
    rows: int
    columns: int

    def segments(self, interval: int) -> int:
        return -(-self.rows * self.columns // interval)


class Scans(NamedTuple):
    """The header of a JPEG with a scan for each plane.

    Attributes:
        height, width: of the image.
        interval: blocks in a segment.
        luma, colours: the planes; the colours are two, Cb and Cr.
        heads: of the second and third scan.
    """

    height: int
    width: int
    interval: int
    luma: Plane
    colours: Plane
    heads: tuple[bytes, ...]


class PlaneCells(NamedTuple):
    """The segments of a plane that contain a box, or those of Cb and then of Cr, as rows of a grey JPEG.

    Attributes:
        plane: 0 for luma, 1 for colours.
        head, rows, lengths, width: see `jpeg_cut.Piled`.
        shifts: for each row of blocks of the box, the blocks by which its segments begin before it. They recur after `period` rows,
            but for the last `moved` ones.
        top, left, tall, wide: the part of the plane that they hold, in its pixels.
    """

    plane: int
    head: tuple[bytes, bytes]
    rows: list[bytes]
    lengths: Array
    width: int
    shifts: list[int]
    period: int
    moved: int
    top: int
    left: int
    tall: int
    wide: int

    @property
    def height(self) -> int:
        return BLOCK * len(self.rows)

    @property
    def end(self) -> int:
        return self.height

    @property
    def bounded(self) -> bool:
        return False

    def aligned(self, pixels: Array, shrink: int) -> Array:
        """Return the part of the plane, [h, w, 1 or 2], from the decoded rows, [height / shrink, width / shrink, 1]."""
        if self.plane:
            half = len(pixels) // 2
            pixels = cv2.merge((pixels[:half], pixels[half:]))
        block, shifts = BLOCK // shrink, self.shifts
        height, width = -(-self.tall // shrink), -(-self.wide // shrink)
        if len(set(shifts)) == 1:
            return pixels[:height, shifts[0] * block : shifts[0] * block + width]
        rows = pixels.reshape(len(shifts), block, -1, self.plane + 1)
        out: Array = np.empty((len(shifts), block, width, self.plane + 1), np.uint8)
        regular = len(shifts) - self.moved
        for k in range(min(self.period, regular)):
            start = shifts[k] * block
            out[k : regular : self.period] = rows[k : regular : self.period, :, start : start + width]
        for k in range(regular, len(shifts)):
            start = shifts[k] * block
            out[k] = rows[k, :, start : start + width]
        return out.reshape(-1, width, self.plane + 1)[:height]


def find_planes(
    data: bytes | memoryview, top: int, left: int, height: int, width: int, *, of: tuple[int, int]
) -> tuple[PlaneCells, PlaneCells] | None:
    """Return the fewest segments of luma and of colours that contain a box.

    Args:
        data: a JPEG with a scan for each plane and the index of docs/format.md.
        top, left, height, width: the box, inside the image and not empty.
        of: (height, width) that the image should have.

    Returns:
        None if there is no index, if it or `of` does not fit the file, or if the box needs a last segment that is shorter than the
        others: decode the whole.
    """
    index = read_index(data)
    if index is None:
        return None
    lengths, index_end = index
    scans, scan = _read_header(data, index_end)
    if scans is None or of != (scans.height, scans.width) or top + height > of[0] or left + width > of[1]:
        return None
    luma, colours, interval = scans.luma, scans.colours, scans.interval
    first, each = luma.segments(interval), colours.segments(interval)
    ends = np.empty(len(lengths) + 1, np.int64)
    ends[0] = scan
    np.cumsum(lengths, out=ends[1:])
    ends[1:] += scan
    if len(lengths) != first + 2 * each or ends[-1] + 2 * BETWEEN != len(data):
        return None
    whole = bytes(data)
    for number, head in enumerate(scans.heads):
        if not whole.startswith(head, ends[first + number * each] + BETWEEN * number - 2):
            return None
    bottom, right = top + height, left + width
    in_luma = _find(luma, interval, top, left, bottom, right)
    in_colours = _find(colours, interval, top // 2, left // 2, -(-bottom // 2), -(-right // 2))
    if in_luma is None or in_colours is None:
        return None
    (y, y_count, *of_luma), (c, c_count, *of_colours) = in_luma, in_colours
    c = np.concatenate((c + first, c + (first + each)))
    rows = [whole[a:b] for a, b in zip(ends[y].tolist(), ends[y + y_count].tolist(), strict=True)]
    starts, stops = ends[c], ends[c + c_count]
    for bounds in starts, stops:
        bounds += BETWEEN
        bounds[len(c) // 2 :] += BETWEEN
    return (
        PlaneCells(0, luma.head, rows, lengths[y[:, None] + np.arange(y_count)].ravel(), BLOCK * interval * y_count, *of_luma),
        PlaneCells(
            1,
            colours.head,
            [whole[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)],
            lengths[c[:, None] + np.arange(c_count)].ravel(),
            BLOCK * interval * c_count,
            *of_colours,
        ),
    )


def _find(plane: Plane, interval: int, top: int, left: int, bottom: int, right: int) -> tuple[Any, ...] | None:
    """Return the first segment of each row of blocks of a box, the segments in a row, and the last fields of PlaneCells."""
    row, row_end, column, column_end = top // BLOCK, -(-bottom // BLOCK), left // BLOCK, -(-right // BLOCK)
    blocks = np.arange(row * plane.columns + column, row_end * plane.columns, plane.columns)
    segments, shifts = np.divmod(blocks, interval)
    period = interval // gcd(plane.columns, interval)
    moved = 0
    count = -(-(int(shifts[:period].max()) + column_end - column) // interval)
    last = plane.segments(interval) - count
    if segments[-1] >= last:
        if last < 0 or plane.rows * plane.columns % interval:
            return None
        moved = int((segments > last).sum())
        segments = np.minimum(segments, last)
        shifts = blocks - segments * interval
    tall = min(row_end * BLOCK, plane.height) - row * BLOCK
    wide = min(column_end * BLOCK, plane.width) - column * BLOCK
    return segments, count, shifts.tolist(), period, moved, row * BLOCK, column * BLOCK, tall, wide


def whole_planes(
    data: bytes | memoryview, height: int, width: int, scratch: Callable[[int], Array], *, shrink: int, fast: bool
) -> tuple[Array, Array]:
    """Decode luma [h, w, 1] and colours [h / 2, w / 2, 2], each side divided by `shrink` and rounded up.

    Args:
        data: a JPEG with a scan for each plane, also without an index.
        height, width: of the image.
        scratch, fast: as for `decode_jpeg_into`.

    Raises:
        CodecError: if the bytes are damaged, or have an image of another size.
    """
    record = bytes(data)
    index = read_index(record)
    scans, at = _read_header(record, index[1]) if index else _parsed(record, len(SOI))
    if scans is None:
        raise CodecError("damaged JPEG: it has no scan for each plane")
    if (scans.height, scans.width) != (height, width):
        raise CodecError(f"a jpeg-yuv420 record holds {(scans.height, scans.width)} pixels, the index says {(height, width)}")
    planes = []
    for number, plane in enumerate((scans.luma, scans.colours, scans.colours)):
        end = record.find(scans.heads[number] if number < 2 else EOI, at)
        if end < 0:
            raise CodecError("damaged JPEG: it ends early")
        before, after = plane.head
        jpeg = b"".join([before, _SIDES.pack(plane.height, plane.width), after, record[at:end], EOI])
        size = -(-plane.height // shrink), -(-plane.width // shrink)
        pixels = decode_jpeg_into(scratch, jpeg, size, gray=True, fast=fast)
        planes.append(pixels.copy())
        at = end + len(_scan_head(1))
    return planes[0], cv2.merge(planes[1:]).reshape(*planes[1].shape[:2], 2)


_headers: dict[bytes, Scans] = {}
_heads: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}  # those of equal planes are the same object, which is compared faster
_lengths: set[int] = set()  # of the headers: usually one, as the images of a store share it


def _read_header(data: bytes | memoryview, at: int) -> tuple[Scans | None, int]:
    """Return the header from `at`, and where the first scan begins. Headers are cached: a store's images share them."""
    for length in tuple(_lengths):
        found = _headers.get(bytes(data[at : at + length]))
        if found is not None:
            return found, at + length
    scans, scan = _parsed(data, at)
    if scans is None:
        return None, at
    if len(_headers) >= MOST_HEADERS:
        _headers.clear()
        _heads.clear()
        _lengths.clear()
    _headers[bytes(data[at:scan])] = scans
    _lengths.add(scan - at)
    return scans, scan


def _parsed(data: bytes | memoryview, at: int) -> tuple[Scans | None, int]:
    try:
        scan = scan_start(data, at)
        return _parse(bytes(data[at:scan])), scan
    except (IndexError, KeyError, ValueError, struct.error):
        return None, at


def _parse(header: bytes) -> Scans | None:
    """Return None for another JPEG."""
    segments = _segments(header)
    (frame,), (restarts,), (head,) = segments[SOF0], segments[DRI], segments[SOS]
    depth, height, width, components = struct.unpack_from(">BHHB", frame, 4)
    numbers, sampling, tables = frame[10::3], frame[11::3], frame[12::3]
    interval = int.from_bytes(restarts[4:], "big")
    fits = (depth, components, len(frame), sampling, head[4:6]) == (8, 3, 19, SAMPLING, bytes([1, numbers[0]]))
    if not fits or not interval or tables[1] != tables[2]:
        return None
    shared = b"".join(part for marker in (DQT, DHT, DRI) for part in segments[marker])
    planes = []
    for table, scale in zip(tables, (1, 2), strict=False):
        sides = -(-height // scale), -(-width // scale)
        before, after = SOI + shared + b"\xff\xc0\x00\x0b\x08", b"\x01\x01\x11" + bytes([table]) + _scan_head(1)
        kept = _heads.setdefault((before, after), (before, after))
        planes.append(Plane(kept, *sides, *(-(-side // BLOCK) for side in sides)))
    return Scans(height, width, interval, planes[0], planes[1], tuple(_scan_head(number) for number in numbers[1:]))


_SIDES = struct.Struct(">HH")
