"""GIF, BMP and Sun raster, read here from first byte to last.

OpenCV reads them too, but draws GIF frames onto a background of its own and does not notice when a file ends early.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import chain
from typing import Any

import cv2
import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, look_up
from fastdata.images.header import Header, unsupported
from fastdata.images.unpack import split_bits, unpack_lzw

__all__ = ["read_bmp", "read_gif", "read_sun"]

Array = np.ndarray[Any, np.dtype[Any]]

SUN_RUNS = re.compile(rb"[^\x80]+|\x80\x00|\x80[\x01-\xff].", re.S)  # literal bytes, one byte 0x80, a run


@dataclass(frozen=True, kw_only=True)
class GifHeader(Header):
    format = "gif"
    box: tuple[int, int, int, int]  # top, left, height, width of the first frame
    palette: bytes
    transparent: int | None  # palette index
    interlaced: bool
    depth: int
    start: int  # of the LZW data

    def pixels(self, data: bytes) -> Pixels:
        """The first frame; what it leaves of the screen is transparent."""
        top, left, rows, columns = self.box
        packed, _ = _gif_blocks(data, self.start)
        indices = np.frombuffer(unpack_lzw(packed, rows * columns, depth=self.depth, tiff=False), np.uint8)
        indices = indices.reshape(rows, columns)
        if self.interlaced:
            order = chain(range(0, rows, 8), range(4, rows, 8), range(2, rows, 4), range(1, rows, 2))
            indices = indices[np.argsort(list(order))]
        alpha = b"" if self.transparent is None else b"\xff" * self.transparent + b"\0"
        pixels = look_up(indices, self.palette, alpha)
        if self.box == (0, 0, self.height, self.width):
            return pixels
        color, seen = np.zeros((self.height, self.width, 3), np.uint8), np.zeros((self.height, self.width), np.uint8)
        place = np.s_[top : top + rows, left : left + columns]
        color[place], seen[place] = pixels.color, 255 if pixels.alpha is None else pixels.alpha
        return Pixels(color, seen)


def read_gif(data: bytes) -> GifHeader:
    """The header, up to the first frame."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    palette, at = _gif_palette(data, 13, flags, b"")
    transparent = None
    while (kind := data[at]) != 0x2C:
        if kind != 0x21:
            raise CodecError("the GIF has no picture", "undecodable")
        label = data[at + 1]
        body, at = _gif_blocks(data, at + 2)
        if label == 0xF9 and len(body) >= 4:
            transparent = body[3] if body[0] & 1 else None
    left, top, columns, rows, flags = struct.unpack_from("<HHHHB", data, at + 1)
    palette, at = _gif_palette(data, at + 10, flags, palette)
    depth = data[at]
    if not 1 <= depth <= 8:
        raise CodecError(f"a GIF with codes of {depth} bits", "undecodable")
    return GifHeader(
        height=max(height, top + rows),  # a frame may overhang its screen
        width=max(width, left + columns),
        box=(top, left, rows, columns),
        palette=palette,
        transparent=transparent,
        interlaced=bool(flags & 0x40),
        depth=depth,
        start=at + 1,
    )


def _gif_palette(data: bytes, at: int, flags: int, otherwise: bytes) -> tuple[bytes, int]:
    """The palette that stands at `at` if `flags` say so, and where it ends."""
    end = at + 3 * (2 << (flags & 7))
    return (data[at:end], end) if flags & 0x80 else (otherwise, at)


def _gif_blocks(data: bytes, at: int) -> tuple[bytes, int]:
    """What the blocks from `at` to the empty one hold, and where that one ends."""
    blocks: list[bytes] = []
    while at < len(data):
        size = data[at]
        at += 1 + size
        if size == 0:
            return b"".join(blocks), at
        blocks.append(data[at - size : at])
    raise CodecError("the GIF ends inside a block", "truncated")


@dataclass(frozen=True, kw_only=True)
class BmpHeader(Header):
    format = "bmp"
    bits: int
    masks: tuple[int, int, int, int]  # red, green, blue, alpha; zeros for palettes
    palette: bytes
    offset: int
    top_down: bool

    def pixels(self, data: bytes) -> Pixels:
        """The fourth byte of plain 32-bit files is padding; a wholly transparent alpha is unused."""
        rows = self._rows(data)
        if self.bits <= 8:
            return look_up(split_bits(rows, self.bits)[:, : self.width], self.palette)
        if self.bits == 24:
            return Pixels(cv2.cvtColor(rows.reshape(self.height, self.width, 3), cv2.COLOR_BGR2RGB))
        packed = rows.view("<u2" if self.bits == 16 else "<u4")
        color = np.stack([_masked(packed, mask) for mask in self.masks[:3]], axis=2)
        alpha = _masked(packed, self.masks[3]) if self.masks[3] else None
        return Pixels(color, alpha if alpha is not None and alpha.any() else None)

    def _rows(self, data: bytes) -> Array:
        """[H, bytes] from the top, without the padding of rows to four bytes; that of the last one may be missing."""
        row, stride = -(-self.width * self.bits // 8), -(-self.width * self.bits // 32) * 4
        body = data[self.offset : self.offset + stride * self.height]
        if len(body) < stride * (self.height - 1) + row:
            raise CodecError("the BMP ends inside its pixels", "truncated")
        rows = np.frombuffer(body.ljust(stride * self.height, b"\0"), np.uint8).reshape(self.height, stride)[:, :row]
        return np.ascontiguousarray(rows if self.top_down else rows[::-1])


def read_bmp(data: bytes) -> BmpHeader:
    """The header of an uncompressed BMP, of every version."""
    offset, size = struct.unpack_from("<II", data, 10)
    method, used = 0, 0
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits, method, _, _, _, used = struct.unpack_from("<iiHHIIiiI", data, 18)
    if method not in (0, 3, 6) or bits not in (1, 4, 8, 16, 24, 32):
        raise unsupported(f"BMP of {bits} bits with compression {method}")
    masks, palette = (0, 0, 0, 0), b""
    if method:
        red, green, blue, alpha = struct.unpack_from("<IIII", data, 54)
        masks = (red, green, blue, alpha if size >= 56 or method == 6 else 0)
    elif bits >= 16:
        masks = (0x7C00, 0x3E0, 0x1F, 0) if bits == 16 else (0xFF0000, 0xFF00, 0xFF, 0)
    if bits <= 8:
        step = 3 if size == 12 else 4  # blue, green, red and, but for the oldest files, an unused byte
        raw = data[14 + size : 14 + size + step * min(used or 256, 1 << bits)]
        palette = bytes(chain.from_iterable(zip(raw[2::step], raw[1::step], raw[::step], strict=False)))
    return BmpHeader(height=abs(height), width=width, bits=bits, masks=masks, palette=palette, offset=offset, top_down=height < 0)


def _masked(packed: Array, mask: int) -> Array:
    """The bits under `mask`, scaled to 0..255."""
    if not re.fullmatch("1{1,8}0*", f"{mask:b}"):
        raise unsupported(f"BMP with bit mask {mask:#x}")
    shift = (mask & -mask).bit_length() - 1
    largest = mask >> shift
    values = (packed >> np.uint32(shift)).astype(np.uint32) & np.uint32(largest)
    return ((values * 255 + largest // 2) // largest).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class SunHeader(Header):
    format = "other"
    bits: int
    packed: bool
    reversed: bool  # blue, green, red
    palette: bytes
    start: int

    def pixels(self, data: bytes) -> Pixels:
        row, stride = -(-self.width * self.bits // 8), -(-self.width * self.bits // 16) * 2
        size = stride * self.height
        raw = _sun_runs(data, self.start, size) if self.packed else data[self.start : self.start + size]
        if len(raw) < size:
            raise CodecError("the Sun raster ends inside its pixels", "truncated")
        rows = np.frombuffer(raw, np.uint8, size).reshape(self.height, stride)[:, :row]
        if self.bits <= 8:
            return look_up(split_bits(rows, self.bits)[:, : self.width], self.palette)
        color = rows.reshape(self.height, self.width, 3)
        return Pixels(np.ascontiguousarray(color[..., ::-1] if self.reversed else color))


def read_sun(data: bytes) -> SunHeader:
    """The header of a Sun raster. Where 32 bits have their padding readers do not agree, so these are refused."""
    width, height, bits, _, kind, map_kind, map_size = struct.unpack_from(">7I", data, 4)
    if kind > 3 or bits not in (1, 8, 24) or map_kind > 1 or map_size > 768 or (bits > 8 and map_size):
        raise unsupported(f"Sun raster of type {kind} with {bits} bits and this palette")
    start, third = 32 + map_size, map_size // 3
    gray = b"\xff\0" if bits == 1 else bytes(range(256))  # where there is no palette: a set bit is black
    planes = [data[32 + k * third : 32 + (k + 1) * third] if map_size else gray for k in range(3)]
    palette = bytes(chain.from_iterable(zip(*planes, strict=False)))
    return SunHeader(height=height, width=width, bits=bits, packed=kind == 2, reversed=kind != 3, palette=palette, start=start)


def _sun_runs(data: bytes, start: int, size: int) -> bytes:
    out = bytearray()
    for found in SUN_RUNS.finditer(data, start):
        run = found[0]
        out += run if run[0] != 0x80 else b"\x80" if run[1] == 0 else run[2:] * (run[1] + 1)
        if len(out) >= size:
            break
    return bytes(out)
