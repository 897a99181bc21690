"""TIFF and BigTIFF: grey, RGB, palette and CMYK in strips or tiles, plain, LZW, deflate, PackBits or JPEG (there YCbCr too).

Read here and not by OpenCV, which turns, premultiplies, drops alpha or hides damage depending on the layout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, cmyk_to_rgb, look_up
from fastdata.images.header import ORIENTATION, Header, Tags, read_tags, unsupported
from fastdata.images.jpeg_file import decode_jpeg, join_tables, read_jpeg
from fastdata.images.unpack import inflate, split_bits, unpack_bits, unpack_tiff_lzw

__all__ = ["read_tiff"]

Array = np.ndarray[Any, np.dtype[Any]]


class Tag(IntEnum):
    WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
    FILL_ORDER, STRIPS, SAMPLES, ROWS, STRIP_BYTES = 266, 273, 277, 278, 279
    PLANAR, PREDICTOR, PALETTE = 284, 317, 320
    TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 322, 323, 324, 325
    INKS, EXTRA, SAMPLE_FORMAT, JPEG_TABLES = 332, 338, 339, 347
    TURN = ORIENTATION


PLAIN, LZW, JPEG, PACKBITS = 1, 5, 7, 32773
DEFLATE = (8, 32946)
WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK, YCC = 0, 1, 2, 3, 5, 6
COLORS = {WHITE_IS_0: 1, BLACK_IS_0: 1, RGB: 3, INDEXED: 1, CMYK: 4, YCC: 3}  # samples of colour
PREMULTIPLIED, STRAIGHT = 1, 2  # kinds of extra samples that are alpha
JPEG_SPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}  # by samples; the last is any four values as they are
MIRRORED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


@dataclass(frozen=True, kw_only=True)
class TiffHeader(Header):
    format = "tiff"
    order: str
    bits: int
    samples: int
    photometric: int
    compression: int
    differences: bool  # each sample but the first of a row is stored as the difference to the one before
    planar: bool
    alpha: int | None  # which sample
    premultiplied: bool
    palette: tuple[int, ...]
    tiled: bool
    piece: tuple[int, int]  # rows and columns of a strip or tile
    offsets: tuple[int, ...]
    counts: tuple[int, ...]
    mirrored: bool  # the first pixel is the lowest bit
    tables: bytes  # of all JPEG pieces

    def pixels(self, data: bytes) -> Pixels:
        values, full = self._samples(data), (1 << self.bits) - 1
        if self.photometric == INDEXED:
            table = np.array(self.palette[: 3 << self.bits]).reshape(3, -1).T
            return look_up(values[..., 0], (table >> 8 if table.max() > 255 else table).astype(np.uint8).tobytes())
        if self.bits < 8:
            values, full = values * np.uint8(255 // full), 255
        alpha = None if self.alpha is None else np.ascontiguousarray(values[..., self.alpha])
        if self.photometric == CMYK:
            color = cmyk_to_rgb(full - values[..., :4])
        elif self.photometric in (RGB, YCC):
            color = np.ascontiguousarray(values[..., :3])
        else:
            color = np.ascontiguousarray(full - values[..., 0] if self.photometric == WHITE_IS_0 else values[..., 0])
        return Pixels(color, alpha, self.premultiplied)

    def _samples(self, data: bytes) -> Array:
        """[H, W, samples] uint8 or uint16 as stored, put together from strips or tiles."""
        rows, columns = self.piece
        across, down = -(-self.width // columns), -(-self.height // rows)
        planes, depth = (self.samples, 1) if self.planar else (1, self.samples)
        row = -(-columns * depth * self.bits // 8)
        counts = self.counts or (rows * row,) * (len(self.offsets) if self.compression == PLAIN else 0)
        if min(len(self.offsets), len(counts)) < across * down * planes:
            raise CodecError("the TIFF does not say where its pixels are", "undecodable")
        out = np.empty((self.height, self.width, self.samples), np.uint16 if self.bits == 16 else np.uint8)
        for index in range(across * down * planes):
            plane, place = divmod(index, across * down)
            top, left = place // across * rows, place % across * columns
            tall = rows if self.tiled else min(rows, self.height - top)
            packed = data[self.offsets[index] : self.offsets[index] + counts[index]]
            target = out[top : top + tall, left : left + columns, plane : plane + depth]
            target[...] = self._piece(packed, tall, row, depth)[: target.shape[0], : target.shape[1]]
        return out

    def _piece(self, packed: bytes, tall: int, row: int, depth: int) -> Array:
        """One strip or tile, [rows, columns, depth]; of packed bits there may be more columns."""
        if self.compression == JPEG:
            return self._jpeg(packed, tall, depth)
        raw = self._unpacked(packed.translate(MIRRORED) if self.mirrored else packed, tall, row)
        if self.bits == 16:
            block = np.frombuffer(raw, self.order + "u2").astype(np.uint16).reshape(tall, -1, depth)
        else:
            block = split_bits(np.frombuffer(raw, np.uint8).reshape(tall, row), self.bits).reshape(tall, -1, depth)
        return np.cumsum(block, axis=1, dtype=block.dtype) if self.differences else block

    def _jpeg(self, packed: bytes, tall: int, depth: int) -> Array:
        stream = join_tables(self.tables, packed, ycc=self.photometric == YCC)
        try:
            header = read_jpeg(stream)
        except struct.error:
            raise CodecError("the TIFF holds a JPEG that ends inside its header", "truncated") from None
        if header.components != depth or header.width != self.piece[1] or not tall <= header.height <= self.piece[0]:
            raise CodecError("the TIFF holds a JPEG of another shape", "undecodable")
        return decode_jpeg(stream, header, colorspace=JPEG_SPACES[depth])[:tall]

    def _unpacked(self, packed: bytes, rows: int, row: int) -> bytes:
        size = rows * row
        if self.compression == LZW:
            if packed[:2] == b"\0\x01":
                raise unsupported("TIFF with old-style LZW")
            return unpack_tiff_lzw(packed, rows, row)
        if self.compression in DEFLATE:
            return inflate(packed, size)
        if self.compression == PACKBITS:
            return unpack_bits(packed, size)
        if len(packed) < size:
            raise CodecError("the TIFF ends inside its pixels", "truncated")
        return packed[:size]


def read_tiff(data: bytes) -> TiffHeader:
    """The header of the first picture."""
    tags = read_tags(data, frozenset(Tag))
    _check(tags)
    height, width, tiled = _first(tags, Tag.HEIGHT, 0), _first(tags, Tag.WIDTH, 0), Tag.TILE_WIDTH in tags
    rows, columns = min(_first(tags, Tag.ROWS, height), height), width
    if tiled:
        rows, columns = _first(tags, Tag.TILE_HEIGHT, 0), _first(tags, Tag.TILE_WIDTH, 0)
    if min(height, width, rows, columns) <= 0 or rows * columns > max(4 * height * width, 1 << 20):
        raise CodecError(f"TIFF of {height} x {width} in pieces of {rows} x {columns}", "undecodable")
    samples, photometric, compression = _kind(tags)
    alpha, premultiplied = _alpha(tags, samples, COLORS[photometric])
    turn = _first(tags, Tag.TURN, 1)
    return TiffHeader(
        height=height,
        width=width,
        orientation=turn if 1 <= turn <= 8 else 1,
        order="<" if data[:2] == b"II" else ">",
        bits=_first(tags, Tag.BITS, 1),
        samples=samples,
        photometric=photometric,
        compression=compression,
        differences=_first(tags, Tag.PREDICTOR, 1) == 2 and compression in (LZW, *DEFLATE),
        planar=_first(tags, Tag.PLANAR, 1) == 2 and samples > 1,
        alpha=alpha,
        premultiplied=premultiplied,
        palette=tuple(value & 0xFFFF for value in tags.get(Tag.PALETTE, ())),
        tiled=tiled,
        piece=(rows, columns),
        offsets=tags.get(Tag.TILES if tiled else Tag.STRIPS, ()),
        counts=tags.get(Tag.TILE_BYTES if tiled else Tag.STRIP_BYTES, ()),
        mirrored=_first(tags, Tag.FILL_ORDER, 1) == 2,
        tables=bytes(value & 255 for value in tags.get(Tag.JPEG_TABLES, ())),
    )


def _first(tags: Tags, tag: Tag, otherwise: int) -> int:
    return tags.get(tag, (otherwise,))[0]


def _kind(tags: Tags) -> tuple[int, int, int]:
    """Samples per pixel, photometric interpretation, compression."""
    return _first(tags, Tag.SAMPLES, 1), _first(tags, Tag.PHOTOMETRIC, -1), _first(tags, Tag.COMPRESSION, PLAIN)


def _alpha(tags: Tags, samples: int, colors: int) -> tuple[int | None, bool]:
    """Which sample is alpha, and whether the colours are multiplied by it."""
    extra = tags.get(Tag.EXTRA, ())
    for index, kind in enumerate(extra, samples - len(extra)):
        if kind in (PREMULTIPLIED, STRAIGHT) and index >= colors:
            return index, kind == PREMULTIPLIED
    return None, False


def _check(tags: Tags) -> None:
    samples, photometric, compression = _kind(tags)
    bits, colors, predictor = tags.get(Tag.BITS, (1,)), COLORS.get(photometric), _first(tags, Tag.PREDICTOR, 1)
    if set(tags.get(Tag.SAMPLE_FORMAT, (1,))) != {1}:
        raise unsupported("TIFF with signed or floating-point samples")
    if compression not in (PLAIN, LZW, JPEG, PACKBITS, *DEFLATE):
        raise unsupported(f"TIFF with compression {compression}")
    if colors is None or _first(tags, Tag.INKS, 1) != 1:
        raise unsupported(f"TIFF with photometric interpretation {photometric}")
    planar = _first(tags, Tag.PLANAR, 1) == 2
    if photometric == YCC and (compression != JPEG or samples != 3 or planar):
        raise unsupported("TIFF with YCbCr other than in JPEG of three interleaved samples")
    if compression == JPEG and (bits[0] != 8 or (samples not in JPEG_SPACES and not planar)):
        raise unsupported(f"TIFF with JPEG of {samples} samples of {bits[0]} bits")
    if not colors <= samples <= colors + 4:
        raise unsupported(f"TIFF with {samples} samples per pixel")
    if len(set(bits)) != 1 or bits[0] not in ((1, 2, 4, 8, 16) if samples == 1 else (8, 16)):
        raise unsupported(f"TIFF with samples of {bits[0]} bits")
    if _first(tags, Tag.FILL_ORDER, 1) not in (1, 2) or predictor not in (1, 2) or (predictor == 2 and bits[0] < 8):
        raise unsupported("TIFF with this bit order or predictor")
    if photometric == INDEXED and (samples > 1 or bits[0] > 8 or len(tags.get(Tag.PALETTE, ())) < 3 << bits[0]):
        raise unsupported("TIFF with this palette")
