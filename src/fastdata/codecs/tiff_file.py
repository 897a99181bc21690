"""Read TIFF and BigTIFF with Pillow, or with tifffile where Pillow would misread the file.

Pillow keeps 8 bits of 16-bit colours, does not invert 16 bits, and mistakes planes. libtiff leaves strips black that a file does
not name. So the tags are checked before anything is decoded.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.codecs.channels import Header, unsupported
from fastdata.codecs.pillow_files import ORIENTATION, PillowHeader, extra, strict
from fastdata.errors import CodecError
from fastdata.types import Array

SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 254, 256, 257, 258, 259, 262
STRIPS, SAMPLES, ROWS, STRIP_BYTES, PLANAR = 273, 277, 278, 279, 284
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 322, 323, 324, 325
INKS, EXTRA, SAMPLE_FORMAT = 332, 338, 339
WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK = 0, 1, 2, 3, 5
COLORS = {WHITE_IS_0: 1, BLACK_IS_0: 1, RGB: 3, INDEXED: 1, CMYK: 4}  # samples of colour
PLAIN, JPEG = 1, (6, 7)  # compressions
PREMULTIPLIED, STRAIGHT = 1, 2  # alpha, among the kinds of extra samples


@dataclass(frozen=True, kw_only=True)
class TiffHeader(Header):
    """The header of a grey or RGB TIFF that tifffile reads."""

    format: str = "tiff"
    tags: Mapping[int, Any]

    def pixels(self, data: bytes) -> Array:
        tifffile = extra("tifffile", "tifffile", "TIFF of these samples")
        with strict("TIFF", reader="tifffile"), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages[0]
            values: Array = page.asarray(maxworkers=1)
            values = np.moveaxis(values, 0, 2) if page.axes[:1] == "S" else values
            values = values.astype(values.dtype.newbyteorder("="), copy=False).reshape(self.height, self.width, -1)
            colors, kinds = COLORS[self.tags[PHOTOMETRIC]], _extra_samples(self.tags)
            values = values[..., [*range(colors), *([colors + kinds.index(STRAIGHT)] if STRAIGHT in kinds else [])]]
        if self.tags[PHOTOMETRIC] == WHITE_IS_0:
            values[..., 0] = np.iinfo(values.dtype).max - values[..., 0]
        return values[..., 0] if values.shape[2] == 1 else values


def _extra_samples(tags: Mapping[int, Any]) -> tuple[int, ...]:
    """Return the kinds of samples besides colour. An unexplained fourth sample of RGB is alpha, as in Pillow."""
    unexplained = (STRAIGHT,) if (tags[PHOTOMETRIC], tags.get(SAMPLES)) == (RGB, 4) else ()
    return tags.get(EXTRA) or unexplained


def read_tiff(data: bytes) -> Header:
    """Read the header of the first picture."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    head, word, size = (16, 8, 20) if data[2] == ord("+") else (8, 2, 12)  # BigTIFF has longer ones
    with strict("TIFF"):
        directory = ImageFileDirectory_v2(data[:head])
        start = directory.next + word
        count = int.from_bytes(data[directory.next : start], "little" if data[0] == ord("I") else "big")
        if start + size * count > len(data):  # Pillow would leave out tags, such as that of alpha
            raise CodecError("the TIFF ends inside its tags", "truncated")
        file = io.BytesIO(data)
        file.seek(directory.next)
        directory.load(file)
        return _checked(data, directory)


def _checked(data: bytes, tags: Mapping[int, Any]) -> Header:
    samples, photometric = tags.get(SAMPLES, 1), tags.get(PHOTOMETRIC, -1)
    bits, compression = tags.get(BITS, (1,))[0], tags.get(COMPRESSION, PLAIN)
    colors, planar = COLORS.get(photometric, 0), tags.get(PLANAR, 1) == 2
    if set(tags.get(SAMPLE_FORMAT, (1,))) != {1}:
        raise CodecError("TIFF with signed or floating-point samples, which are no image: save them as .npy", "unsupported")
    misread = (
        tags.get(SUBFILE, 0) & 1  # a thumbnail, as in raw files of cameras
        or not colors <= samples <= colors + 4
        or tags.get(INKS, 1) != 1
        or (bits > 8 and photometric == INDEXED)
        or compression in JPEG
        or (planar and bits < 8)
        or tags.get(PLANAR, 1) > 2
        or bits not in (1, 2, 4, 8, 16)
    )
    if not colors or misread:
        kind = f"{samples} samples of {bits} bits, photometric interpretation {photometric} and compression {compression}"
        raise unsupported(f"TIFF with {kind}, or with planes or a thumbnail that do not fit")
    _check_pieces(tags, len(data), samples, bits, planar)
    misread_planes = planar and (samples > colors or (samples == 1 and photometric != INDEXED))
    by_tifffile = misread_planes or (bits == 16 and (samples > 1 or photometric != BLACK_IS_0))
    if by_tifffile and (photometric == CMYK or PREMULTIPLIED in _extra_samples(tags)):
        raise unsupported("TIFF of 16 bits, or in planes, with inks or premultiplied alpha")
    height, width, turn = tags[HEIGHT], tags[WIDTH], tags.get(ORIENTATION, 1)
    if by_tifffile:
        return TiffHeader(height=height, width=width, orientation=turn if 1 <= turn <= 8 else 1, tags=tags)
    if 5 <= turn <= 8:  # Pillow turns TIFFs itself
        height, width = width, height
    return PillowHeader(format="tiff", height=height, width=width, plugin="Tiff")


def _check_pieces(tags: Mapping[int, Any], end: int, samples: int, bits: int, planar: bool) -> None:
    """Raise CodecError unless strips or tiles cover the page and lie before `end`: libtiff leaves missing pixels black."""
    height, width, plain, tiled = tags[HEIGHT], tags[WIDTH], tags.get(COMPRESSION, PLAIN) == PLAIN, TILE_WIDTH in tags
    rows, columns = (tags[TILE_HEIGHT], tags[TILE_WIDTH]) if tiled else (min(tags.get(ROWS, height), height), width)
    if min(height, width, rows, columns) <= 0 or rows * columns > max(4 * height * width, 1 << 20):
        raise CodecError(f"the TIFF of {height} x {width} pixels claims pieces of {rows} x {columns}", "undecodable")
    offsets, row = tags.get(TILES if tiled else STRIPS, ()), -(-width * samples * bits // 8)
    unsaid = (-(-height * row // max(len(offsets), 1)),) * len(offsets) if plain else ()
    counts = tags.get(TILE_BYTES if tiled else STRIP_BYTES, unsaid)
    if min(len(offsets), len(counts)) < -(-height // rows) * -(-width // columns) * (samples if planar else 1) or 0 in counts:
        raise CodecError("the TIFF does not say where its pixels are", "undecodable")
    if max(map(sum, zip(offsets, counts, strict=False))) > end or (plain and sum(counts) < height * row):
        raise CodecError("the TIFF ends inside its pixels", "truncated")
