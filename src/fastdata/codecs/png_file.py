"""Read PNG: every chunk is compared with its checksum, palettes and transparency are applied here, OpenCV decodes the rest."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import cv2
import numpy as np

from fastdata.codecs.channels import Header, unsupported
from fastdata.codecs.pillow_files import exif_orientation
from fastdata.errors import CodecError
from fastdata.types import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, INDEXED, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), INDEXED: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGB_ALPHA: (8, 16)}


@dataclass(frozen=True, kw_only=True)
class PngHeader(Header):
    format: str = "png"
    depth: int
    color_type: int
    interlace: int
    palette: bytes
    transparency: bytes  # the tRNS chunk, empty when there is none
    idat: tuple[slice, ...]  # whole IDAT chunks

    def pixels(self, data: bytes) -> Array:
        if self.color_type == INDEXED:
            return self._colors()[self.values(data)]
        stored = self._stored(data)
        if self.color_type == GRAY_ALPHA:
            return stored[..., ::3]
        if self.color_type == RGB_ALPHA:
            return cv2.cvtColor(stored, cv2.COLOR_BGRA2RGBA)
        color = stored if self.color_type == GRAY else cv2.cvtColor(stored, cv2.COLOR_BGR2RGB)
        bytes_of_key = 2 if self.color_type == GRAY else 6
        if len(self.transparency) < bytes_of_key:
            return color
        key = np.frombuffer(self.transparency[:bytes_of_key], ">u2") & ((1 << self.depth) - 1)
        clear = (color.reshape(*color.shape[:2], -1) == (key * self._step).astype(color.dtype)).all(axis=2)
        return np.dstack([color, (~clear).astype(color.dtype) * np.iinfo(color.dtype).max])

    def values(self, data: bytes) -> Array:
        """Return the numbers in the file: [H, W] palette indices or grey, or colours [H, W, C] as OpenCV returns them."""
        stored = self._stored(data)
        return stored // self._step if self._step > 1 else stored

    @property
    def _step(self) -> int:
        """The factor by which OpenCV scales grey of fewer than 8 bits."""
        return 255 // ((1 << self.depth) - 1) if self.depth < 8 else 1

    def _colors(self) -> Array:
        """Return the palette, [256, 3 or 4]. Entries beyond its end are black, and opaque beyond the end of tRNS."""
        if not self.palette:
            raise CodecError("the PNG lacks its palette", "undecodable")
        colors = np.frombuffer(self.palette[:768].ljust(768, b"\0"), np.uint8).reshape(256, 3)
        alphas = np.frombuffer(self.transparency[:256].ljust(256, b"\xff"), np.uint8)
        return np.column_stack([colors, alphas]) if self.transparency else colors

    def _stored(self, data: bytes) -> Array:
        """Decode a copy without ancillary chunks, so that gamma, animation and odd metadata have no effect.

        The copy of a palette PNG is declared grey: it decodes to indices; palette and transparency are applied afterwards.
        """
        declared = GRAY if self.color_type == INDEXED else self.color_type
        head = struct.pack(">IIBBBBB", self.width, self.height, self.depth, declared, 0, 0, self.interlace)
        copy = b"".join([SIGNATURE, _chunk(b"IHDR", head), *(data[chunk] for chunk in self.idat), _chunk(b"IEND", b"")])
        try:
            stored = cv2.imdecode(np.frombuffer(copy, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error as error:
            raise CodecError(f"OpenCV cannot decode the PNG: {error}", "undecodable") from None
        if stored is None:
            raise CodecError("the PNG is damaged, or this OpenCV cannot decode it", "undecodable")
        return stored


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def read_png(data: bytes) -> PngHeader:
    """Read the header, and check every chunk up to IEND: its length, and its checksum, except IDAT's, which OpenCV checks."""
    chunks, idat = dict[bytes, bytes](), list[slice]()
    at, kind = len(SIGNATURE), b""
    while kind != b"IEND":
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + size
        if end > len(data):
            raise CodecError("the PNG ends inside a chunk", "truncated")
        if not chunks and kind != b"IHDR":
            raise unsupported("PNG that does not start with IHDR")
        if kind == b"IDAT":
            idat.append(slice(at, end))
        elif zlib.crc32(data[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise CodecError("the checksum of a PNG chunk is wrong", "undecodable")
        else:
            chunks[kind] = data[at + 8 : end - 4]
        at = end
    width, height, depth, color_type, _, _, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if depth not in DEPTHS.get(color_type, ()):
        raise CodecError(f"PNG colour type {color_type} with {depth} bits does not exist", "undecodable")
    return PngHeader(
        height=height,
        width=width,
        orientation=exif_orientation(chunks.get(b"eXIf", b"")),
        pixel_bytes=28 if depth == 16 else 20,
        depth=depth,
        color_type=color_type,
        interlace=interlace,
        palette=chunks.get(b"PLTE", b""),
        transparency=chunks.get(b"tRNS", b""),
        idat=tuple(idat),
    )
