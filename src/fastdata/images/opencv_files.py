"""Read PNG and WebP: headers here, pixels with OpenCV."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, from_cv2, imdecode, look_up
from fastdata.images.header import Header, exif_orientation, unsupported

__all__ = ["PngHeader", "read_png", "read_webp"]

Array = np.ndarray[Any, np.dtype[Any]]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, INDEXED, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
PNG_DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), INDEXED: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGB_ALPHA: (8, 16)}
WEBP_LEAST = 32  # bytes, for OpenCV; those of an image of one colour may be fewer


@dataclass(frozen=True, kw_only=True)
class PngHeader(Header):
    pixel_bytes: ClassVar[int] = 14

    format: str = "png"
    depth: int
    color_type: int
    interlace: int
    palette: bytes
    transparency: bytes  # the tRNS chunk, empty when there is none
    idat: tuple[slice, ...]  # whole IDAT chunks

    def memory(self) -> int:
        return super().memory() * (2 if self.depth == 16 else 1)

    def pixels(self, data: bytes) -> Pixels:
        decoded = self._stored(data)
        if self.color_type == INDEXED:
            return look_up(self._unstretched(decoded), self.palette, self.transparency)
        color, alpha, _ = from_cv2(decoded)
        if self.color_type == GRAY_ALPHA:
            color = np.ascontiguousarray(decoded[..., 0])
        return Pixels(color, self._keyed(color) if alpha is None else alpha)

    def values(self, data: bytes) -> Array:
        """Return the numbers in the file: [H, W] palette indices or grey, or colours [H, W, C] as OpenCV returns them."""
        return self._unstretched(self._stored(data))

    @property
    def _step(self) -> int:
        """The factor by which OpenCV scales grey of fewer than 8 bits."""
        return 255 // ((1 << self.depth) - 1) if self.depth < 8 else 1

    def _unstretched(self, decoded: Array) -> Array:
        return decoded // self._step if self._step > 1 else decoded

    def _stored(self, data: bytes) -> Array:
        """Decode a copy without ancillary chunks, so that gamma, animation and odd metadata have no effect.

        The copy of a palette PNG is declared grey: it decodes to indices; palette and transparency are applied afterwards.
        """
        declared = GRAY if self.color_type == INDEXED else self.color_type
        head = struct.pack(">IIBBBBB", self.width, self.height, self.depth, declared, 0, 0, self.interlace)
        chunks = [_chunk(b"IHDR", head), *(data[part] for part in self.idat), _chunk(b"IEND", b"")]
        return imdecode(PNG_SIGNATURE + b"".join(chunks))

    def _keyed(self, color: Array) -> Array | None:
        """Return alpha for a PNG in which one colour is transparent."""
        width = 2 if self.color_type == GRAY else 6
        if len(self.transparency) < width:
            return None
        key = np.frombuffer(self.transparency[:width], ">u2") & ((1 << self.depth) - 1)
        same = color == (key * self._step).astype(color.dtype)
        alpha = np.full(color.shape[:2], np.iinfo(color.dtype).max, color.dtype)
        alpha[same.all(axis=2) if same.ndim == 3 else same] = 0
        return alpha


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def read_png(data: bytes) -> PngHeader:
    """Read the header, and check that every chunk up to IEND is complete and has its checksum. OpenCV compares those of IDAT."""
    if data[12:16] != b"IHDR":
        struct.unpack_from("16x", data)  # raises if the file is too short
        raise unsupported("PNG that does not start with IHDR")
    width, height, depth, color_type, _, _, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if depth not in PNG_DEPTHS.get(color_type, ()):
        raise CodecError(f"PNG colour type {color_type} with {depth} bits does not exist", "undecodable")
    idat = list[slice]()
    bodies = dict[bytes, bytes]()
    for kind, start, end in _png_chunks(data):
        if kind == b"IDAT":
            idat.append(slice(start, end))
        elif kind in (b"PLTE", b"tRNS", b"eXIf"):
            bodies[kind] = data[start + 8 : end - 4]
    return PngHeader(
        height=height,
        width=width,
        orientation=exif_orientation(bodies.get(b"eXIf", b"")),
        depth=depth,
        color_type=color_type,
        interlace=interlace,
        palette=bodies.get(b"PLTE", b""),
        transparency=bodies.get(b"tRNS", b""),
        idat=tuple(idat),
    )


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    at, kind = len(PNG_SIGNATURE), b""
    while kind != b"IEND":
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + size
        if end > len(data):
            raise CodecError("the PNG ends inside a chunk", "truncated")
        if kind != b"IDAT" and zlib.crc32(data[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise CodecError("the checksum of a PNG chunk is wrong", "undecodable")
        yield kind, at, end
        at = end


@dataclass(frozen=True, kw_only=True)
class WebpHeader(Header):
    pixel_bytes: ClassVar[int] = 14

    format: str = "webp"
    kind: bytes  # "VP8 " or "VP8L"
    picture: slice  # the body of this chunk, of the first frame
    alpha: slice | None  # of its ALPH chunk

    def pixels(self, data: bytes) -> Pixels:
        """Decode the picture's chunks in a file of their own: of a damaged one, libwebp would decode the chunks behind it too."""
        chunks = [_riff_chunk(self.kind, data[self.picture])]
        if self.alpha is not None:
            sides = b"".join((side - 1).to_bytes(3, "little") for side in (self.width, self.height))
            chunks = [_riff_chunk(b"VP8X", b"\x10\0\0\0" + sides), _riff_chunk(b"ALPH", data[self.alpha]), *chunks]  # 0x10: alpha
        try:
            return from_cv2(imdecode(_riff_chunk(b"RIFF", b"WEBP" + b"".join(chunks)).ljust(WEBP_LEAST, b"\0")))
        except CodecError:
            np.empty(8 * self.height * self.width, np.uint8)  # raises if memory ran out, which OpenCV does not tell
            raise


def read_webp(data: bytes) -> WebpHeader:
    """Read the header. Animations are accepted only if their first frame fills the picture."""
    end = 8 + _little(data, 4, 4)
    if end > len(data):
        raise CodecError(f"the WebP says {end} bytes, the file has {len(data)}", "truncated")
    chunks = _riff_chunks(data, 12, end)
    canvas, frame = chunks.get(b"VP8X"), chunks.get(b"ANMF")
    size = None if canvas is None else (_little(data, canvas.start + 7, 3) + 1, _little(data, canvas.start + 4, 3) + 1)
    pictures = chunks
    if frame is not None:
        at = frame.start
        if (_little(data, at + 9, 3) + 1, _little(data, at + 6, 3) + 1) != size or any(data[at : at + 6]):
            raise unsupported("animated WebP whose first frame does not fill the picture")
        pictures = _riff_chunks(data, at + 16, frame.stop)
    kind = next((kind for kind in pictures if kind in (b"VP8 ", b"VP8L")), None)
    if kind is None:
        raise CodecError("the WebP has no picture", "undecodable")
    picture, alpha = pictures[kind], pictures.get(b"ALPH")
    if max(part.stop for part in (picture, alpha or picture)) > end:
        raise CodecError("the WebP ends inside its pixels", "truncated")
    height, width = size or _webp_size(data, kind, picture.start)
    return WebpHeader(
        height=height,
        width=width,
        orientation=exif_orientation(data[chunks.get(b"EXIF", slice(0))].removeprefix(b"Exif\0\0")),
        kind=kind,
        picture=picture,
        alpha=alpha if kind == b"VP8 " else None,
    )


def _riff_chunks(data: bytes, at: int, end: int) -> dict[bytes, slice]:
    """Return the body of the first chunk of each kind, in the file's order."""
    found = dict[bytes, slice]()
    while at + 8 <= end:
        length, body = _little(data, at + 4, 4), at + 8
        found.setdefault(data[at : at + 4], slice(body, body + length))
        at = body + length + length % 2
    return found


def _riff_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _webp_size(data: bytes, kind: bytes, body: int) -> tuple[int, int]:
    """Return (height, width)."""
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, body + 6)
        return height & 0x3FFF, width & 0x3FFF
    packed = struct.unpack_from("<I", data, body + 1)[0]
    return (packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
