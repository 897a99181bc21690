"""Read TIFF and BigTIFF with Pillow, and the few that Pillow cannot read with tifffile. The tags are checked here first.

Pillow would misread signed samples, leave strips black that a file does not name, and not invert 16 bits; libtiff writes to stderr
about what is missing.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, cmyk_to_rgb, look_up
from fastdata.images.header import ORIENTATION, Header, Tags, read_tags, unsupported
from fastdata.images.jpeg_file import END_OF_IMAGE, read_jpeg
from fastdata.images.pillow_files import extra, open_image, pixels_of, strict

__all__ = ["TiffHeader", "read_tiff"]

Array = np.ndarray[Any, np.dtype[Any]]


class Tag(IntEnum):
    SUBFILE = 254
    WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
    STRIPS, SAMPLES, ROWS, STRIP_BYTES = 273, 277, 278, 279
    PLANAR, PALETTE = 284, 320
    TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 322, 323, 324, 325
    INKS, EXTRA, SAMPLE_FORMAT = 332, 338, 339
    TURN = ORIENTATION


WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK, YCC = 0, 1, 2, 3, 5, 6
COLORS = {WHITE_IS_0: 1, BLACK_IS_0: 1, RGB: 3, INDEXED: 1, CMYK: 4, YCC: 3}  # samples of colour
PLAIN, JPEG = 1, 7
COMPRESSIONS = {PLAIN, 2, 3, 4, 5, JPEG, 8, 32773, 32946, 34925, 50000}  # fax, LZW, deflate, PackBits, LZMA, Zstandard
PREMULTIPLIED, STRAIGHT = 1, 2  # alpha, among the kinds of extra samples


@dataclass(frozen=True, kw_only=True)
class TiffHeader(Header):
    format: str = "tiff"
    bits: int
    samples: int
    photometric: int
    extra: tuple[int, ...]
    palette: tuple[int, ...]
    by_tifffile: bool  # Pillow cannot read 16-bit colours, 16 bits with white as 0, and planes of grey or with alpha

    def pixels(self, data: bytes) -> Pixels:
        if self.by_tifffile:
            return self._by_tifffile(data)
        with strict("TIFF"):
            image = open_image(data, "Tiff")
            if self.photometric == INDEXED:
                image.load()
                table = np.array(self.palette).reshape(3, -1).T
                return look_up(np.asarray(image), (table >> 8 if table.max() > 255 else table).astype(np.uint8).tobytes())
            return pixels_of(image)

    def _by_tifffile(self, data: bytes) -> Pixels:
        values = _values_of(data).reshape(self.height, self.width, self.samples)
        full, colors = np.iinfo(values.dtype).max, COLORS[self.photometric]
        color = values[..., 0] if colors == 1 else values[..., :colors]
        if self.photometric == CMYK:
            color = cmyk_to_rgb(full - color)
        elif self.photometric == WHITE_IS_0:
            color = full - color
        for index, kind in enumerate(self.extra, self.samples - len(self.extra)):
            if kind in (PREMULTIPLIED, STRAIGHT) and index >= colors:
                return Pixels(np.ascontiguousarray(color), np.ascontiguousarray(values[..., index]), kind == PREMULTIPLIED)
        return Pixels(np.ascontiguousarray(color))


def _values_of(data: bytes) -> Array:
    """Read the samples of the first page with tifffile, [H, W] or [H, W, samples], in the file's dtype.

    Raises:
        CodecError: if tifffile is not installed, or cannot read them.
    """
    tifffile = extra("tifffile", "tifffile", "TIFF of these samples")
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            found = file.pages[0]
            values = found.asarray(maxworkers=1)
            planes_first = found.axes[:1] == "S"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  tifffile raises nearly every kind at damaged bytes
        reason = "unsupported" if "requires the" in str(error) else "undecodable"
        raise CodecError(f"tifffile cannot read the TIFF: {error}"[:300], reason) from None
    values = np.moveaxis(values, 0, 2) if planes_first else values
    native: Array = values.astype(values.dtype.newbyteorder("="), order="C", copy=False)
    return native


def read_tiff(data: bytes) -> TiffHeader:
    """Read the header of the first picture."""
    tags = read_tags(data, frozenset(Tag))
    samples = _first_of(tags, Tag.SAMPLES, 1)
    photometric = _first_of(tags, Tag.PHOTOMETRIC, -1)
    depths = tags.get(Tag.BITS, (1,))
    bits = depths[0]
    if set(tags.get(Tag.SAMPLE_FORMAT, (1,))) != {1}:
        raise CodecError("TIFF with signed or floating-point samples, which are no image: save them as .npy", "unsupported")
    if _first_of(tags, Tag.SUBFILE, 0) & 1:
        raise unsupported("TIFF that begins with a thumbnail, as raw files of cameras do,")
    colors = COLORS.get(photometric, 0)
    compression = _first_of(tags, Tag.COMPRESSION, PLAIN)
    if not colors or _first_of(tags, Tag.INKS, 1) != 1:
        raise unsupported(f"TIFF with photometric interpretation {photometric}")
    if not colors <= samples <= colors + 4:
        raise unsupported(f"TIFF with {samples} samples per pixel")
    if len(set(depths)) != 1 or bits not in ((1, 2, 4, 8, 16) if samples == 1 else (8, 16)):
        raise unsupported(f"TIFF with samples of {bits} bits")
    if photometric == INDEXED and (samples > 1 or bits > 8 or len(tags.get(Tag.PALETTE, ())) != 3 << bits):
        raise unsupported("TIFF with this palette")
    if compression not in COMPRESSIONS:
        raise unsupported(f"TIFF with compression {compression}")
    if data[:4] == b"MM\0+":
        raise unsupported("BigTIFF with high bytes first")
    planar = _first_of(tags, Tag.PLANAR, 1) == 2
    if photometric == YCC and (compression != JPEG or samples != 3 or planar):
        raise unsupported("TIFF with YCbCr other than in JPEG of three interleaved samples")
    _check_pieces(tags, data)
    plain = samples == 1 and photometric == BLACK_IS_0 and not planar
    apart = planar and (samples > colors or (samples == 1 and photometric != INDEXED))
    by_tifffile = photometric != YCC and compression != JPEG and (apart or (bits == 16 and not plain))
    if planar and samples == 1 and bits < 8:
        raise unsupported("TIFF of few bits in planes")
    height = _first_of(tags, Tag.HEIGHT, 0)
    width = _first_of(tags, Tag.WIDTH, 0)
    orientation = _first_of(tags, Tag.TURN, 1)
    if not by_tifffile and 5 <= orientation <= 8:  # Pillow rotates TIFFs itself
        height, width = width, height
    return TiffHeader(
        height=height,
        width=width,
        orientation=orientation if by_tifffile and 1 <= orientation <= 8 else 1,
        bits=bits,
        samples=samples,
        photometric=photometric,
        extra=tags.get(Tag.EXTRA) or ((STRAIGHT,) if (photometric, samples) == (RGB, 4) else ()),  # as Pillow
        palette=tuple(value & 0xFFFF for value in tags.get(Tag.PALETTE, ())),
        by_tifffile=by_tifffile,
    )


def _first_of(tags: Tags, tag: Tag, otherwise: int) -> int:
    """Return the first value of a tag, or `otherwise` if it is absent."""
    return tags.get(tag, (otherwise,))[0]


def _check_pieces(tags: Tags, data: bytes) -> None:
    """Raise CodecError unless the strips or tiles of a page cover it and are, as far as is visible before decoding, complete."""
    height = _first_of(tags, Tag.HEIGHT, 0)
    width = _first_of(tags, Tag.WIDTH, 0)
    samples = _first_of(tags, Tag.SAMPLES, 1)
    compression = _first_of(tags, Tag.COMPRESSION, PLAIN)
    tiled = Tag.TILE_WIDTH in tags
    if tiled:
        rows, columns = _first_of(tags, Tag.TILE_HEIGHT, 0), _first_of(tags, Tag.TILE_WIDTH, 0)
    else:
        rows, columns = min(_first_of(tags, Tag.ROWS, height), height), width
    if min(height, width, rows, columns) <= 0 or rows * columns > max(4 * height * width, 1 << 20):
        raise CodecError(f"TIFF of {height} x {width} in pieces of {rows} x {columns}", "undecodable")
    planes = samples if _first_of(tags, Tag.PLANAR, 1) == 2 else 1
    offsets = tags.get(Tag.TILES if tiled else Tag.STRIPS, ())
    counts = tags.get(Tag.TILE_BYTES if tiled else Tag.STRIP_BYTES, ())
    row = -(-width * samples * _first_of(tags, Tag.BITS, 1) // 8)
    if not counts and compression == PLAIN:
        counts = (-(-height * row // max(len(offsets), 1)),) * len(offsets)
    if min(len(offsets), len(counts)) < -(-height // rows) * -(-width // columns) * planes or 0 in counts:
        raise CodecError("the TIFF does not say where its pixels are", "undecodable")
    pieces = list(zip(offsets, counts, strict=False))
    if max(map(sum, pieces)) > len(data) or (compression == PLAIN and sum(counts) < height * row):
        raise CodecError("the TIFF ends inside its pixels", "truncated")
    if compression == JPEG:
        for index, (offset, count) in enumerate(pieces):
            top = index // -(-width // columns) * rows % height
            _check_jpeg(data[offset : offset + count], rows if tiled else min(rows, height - top), rows, columns)


def _check_jpeg(piece: bytes, least: int, rows: int, columns: int) -> None:
    """Check a JPEG's end, rows and columns: libtiff fills what is missing with grey."""
    if not piece.rstrip(b"\0").endswith(END_OF_IMAGE):
        raise CodecError("the TIFF holds a JPEG that ends early", "truncated")
    header = read_jpeg(piece)
    if header.width != columns or not least <= header.height <= rows:
        raise CodecError("the TIFF holds a JPEG of another shape", "undecodable")
