"""JPEG 2000, in boxes (.jp2) or bare (.j2k): the structure is checked here, the pixels are OpenCV's.

OpenJPEG may leave out what a file lacks, and OpenCV turns colours by its own guesses. So every tile has to be there up to the
last marker, and OpenCV sees only the codestream, in boxes made anew; what its channels mean is found out here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, from_cv2, imdecode, stretch
from fastdata.images.header import Header, unsupported

__all__ = ["read_jp2"]

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
SOT, EOC = 0xFF90, 0xFFD9
SRGB, GRAY = 16, 17
ENUMERATED = {SRGB: 3, GRAY: 1}  # numbers of colours
PROFILES = {b"RGB ": 3, b"GRAY": 1}
OPACITY, PREMULTIPLIED = 1, 2


@dataclass(frozen=True, kw_only=True)
class Jp2Header(Header):
    format = "other"
    components: int
    bits: int
    premultiplied: bool
    codestream: slice

    def pixels(self, data: bytes) -> Pixels:
        decoded = imdecode(self._boxed(data[self.codestream]))
        color, alpha, _ = from_cv2(stretch(decoded, (1 << self.bits) - 1))
        return Pixels(color, alpha, self.premultiplied)

    def _boxed(self, stream: bytes) -> bytes:
        """As grey or RGB; OpenCV writes a warning where it is told nothing."""
        size = struct.pack(">IIHBBBB", self.height, self.width, self.components, self.bits - 1, 7, 0, 0)
        color = struct.pack(">BBBI", 1, 0, 0, SRGB if self.components >= 3 else GRAY)
        head = _box(b"ihdr", size) + _box(b"colr", color)
        return SIGNATURE + _box(b"ftyp", b"jp2 \0\0\0\0jp2 ") + _box(b"jp2h", head) + _box(b"jp2c", stream)


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), kind) + body


def read_jp2(data: bytes) -> Jp2Header:
    """The header, with every tile found to be there."""
    colors, channels, codestream = _container(data) if data[0] == 0 else (0, b"", slice(0, len(data)))
    stream = data[codestream]
    height, width, components, bits, tiles = _size(stream)
    if components not in ((1,) if colors == 1 else (3, 4) if colors == 3 else (1, 3, 4)):
        raise unsupported(f"JPEG 2000 with {components} components of {colors or 'unknown'} colours")
    premultiplied = bool(channels) and _premultiplied(channels, components)
    _check_tiles(stream, tiles)
    return Jp2Header(
        height=height, width=width, components=components, bits=bits, premultiplied=premultiplied, codestream=codestream
    )


def _container(data: bytes) -> tuple[int, bytes, slice]:
    """Number of colours, channel definitions (empty when there are none), and where the codestream is."""
    colors, channels = 0, b""
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind == b"ftyp" and b"jp2 " not in data[start:end]:
            raise unsupported("JPEG 2000 of an extended kind")
        if kind == b"jp2h":
            for inner, first, last in _boxes(data, start, end):
                if inner in (b"pclr", b"cmap"):
                    raise unsupported("JPEG 2000 with a palette")
                if inner == b"colr" and not colors:
                    colors = _colors(data[first:last])
                if inner == b"cdef":
                    channels = data[first:last]
        if kind == b"jp2c":
            if not colors:
                raise CodecError("the JPEG 2000 file does not say what its colours are", "undecodable")
            return colors, channels, slice(start, end)
    raise CodecError("the JPEG 2000 file ends before its pixels", "truncated")


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start, end) of what each box holds."""
    while at < end:
        size, kind = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if size == 1:
            size, start = struct.unpack_from(">Q", data, start)[0], at + 16
        stop = at + size if size else end
        if stop > end:
            raise CodecError("the JPEG 2000 file ends inside a box", "truncated")
        if stop < start:
            raise CodecError("a box of the JPEG 2000 file is smaller than its head", "undecodable")
        yield kind, start, stop
        at = stop


def _colors(box: bytes) -> int:
    """The number of colours that a colour specification stands for."""
    if box[0] == 1:
        colors = ENUMERATED.get(struct.unpack_from(">I", box, 3)[0], 0)
    else:
        colors = PROFILES.get(box[19:23], 0) if box[0] == 2 else 0
    if not colors:
        raise unsupported("JPEG 2000 with colours other than RGB and grey")
    return colors


def _premultiplied(box: bytes, components: int) -> bool:
    """From the channel definitions, which must be the colours in their order and, when there are four, alpha behind them."""
    channels = sorted(struct.iter_unpack(">HHH", box[2 : 2 + 6 * components]))
    colors = [(index, 0, index + 1) for index in range(min(components, 3))]
    if channels not in (colors, [*colors, (3, OPACITY, 0)], [*colors, (3, PREMULTIPLIED, 0)]) or len(channels) != components:
        raise unsupported("JPEG 2000 with these kinds of channels")
    return channels[-1] == (3, PREMULTIPLIED, 0)


def _size(stream: bytes) -> tuple[int, int, int, int, int]:
    """Height, width, components, bits and number of tiles."""
    marker, _, kind, width, height, left, top, tile_width, tile_height, tile_left, tile_top, components = struct.unpack_from(
        ">4sHH8IH", stream
    )
    if marker != b"\xff\x4f\xff\x51" or not tile_width or not tile_height:
        raise CodecError("the JPEG 2000 codestream does not say its size", "undecodable")
    each = list(struct.iter_unpack("BBB", stream[42 : 42 + 3 * components]))
    if len(each) < components:
        raise CodecError("the JPEG 2000 codestream ends inside its header", "truncated")
    if kind >> 14 or any((left, top, tile_left, tile_top)):
        raise unsupported("JPEG 2000 of an extended kind, or with an offset")
    if len(set(each)) != 1 or each[0][1:] != (1, 1) or not 8 <= each[0][0] + 1 <= 16:
        raise unsupported("JPEG 2000 with subsampled, signed or unequal components, or less than 8 or more than 16 bits")
    return height, width, components, each[0][0] + 1, -(-width // tile_width) * -(-height // tile_height)


def _check_tiles(stream: bytes, tiles: int) -> None:
    """Every tile-part has to end where the next or the end of the codestream begins, and no tile may be lacking."""
    at, seen = 2, set[int]()
    while (marker := struct.unpack_from(">H", stream, at)[0]) != SOT:
        if marker < 0xFF00 or marker == EOC:
            raise CodecError("the header of the JPEG 2000 codestream is damaged", "undecodable")
        at += 2 + struct.unpack_from(">H", stream, at + 2)[0]
    while (marker := struct.unpack_from(">H", stream, at)[0]) != EOC:
        tile, size = struct.unpack_from(">HI", stream, at + 4)
        seen.add(tile)
        size = size or len(stream) - 2 - at  # the last one may leave its size open
        if marker != SOT or size < 14:
            raise CodecError("a tile of the JPEG 2000 codestream is damaged", "undecodable")
        at += size
    if len(seen) < tiles:
        raise CodecError(f"the JPEG 2000 codestream has {len(seen)} of {tiles} tiles", "truncated")
