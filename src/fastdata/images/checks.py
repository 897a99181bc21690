"""Checks for what Pillow would silently read wrongly, made on a file's bytes before Pillow reads them.

Each check raises a `CodecError`, or a `struct.error` or `IndexError` where the file ends inside what it reads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from fastdata.errors import CodecError
from fastdata.images.header import unsupported

__all__ = ["CHECKS"]

NUMBER = rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,9})"
PNM = re.compile(rb"P[1-6]" + 3 * NUMBER)
SIZ = b"\xff\x4f\xff\x51"  # start of a JPEG 2000 codestream
LARGEST_GIF = 1 << 28
SOT, EOC = 0xFF90, 0xFFD9
JP2_COLORS = re.compile(
    rb"colr(?:\x01..\0\0\0[\x0c\x10\x11\x12]|\x02.{18}(?:RGB |GRAY))", re.S
)  # CMYK, sRGB, grey, sYCC; a profile


def check_pnm(data: bytes) -> None:
    """Reject texts whose last number may be cut, and colours of more than 8 bits, of which Pillow keeps 8."""
    if data[1:2] in b"23" and data[-1:].isdigit():
        raise CodecError("the PNM ends with a digit, and may have lost others: a text ends with white space", "truncated")
    if data[1:2] in b"123" and data.count(b"#") > 1000:  # Pillow's time is quadratic in them
        raise unsupported("PNM with more than a thousand comments")
    found = PNM.match(data)
    if data[1:2] in b"36" and found and int(found[3]) > 255:
        raise unsupported("PNM with colours of more than 8 bits")


def check_gif(data: bytes) -> None:
    """Reject a huge first frame: Pillow allocates one that is to be disposed of before it says its size."""
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    while data[at] == 0x21:  # extensions
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    left, top, width, height = struct.unpack_from("<4H", data, at + 1)
    if data[at] == 0x2C and (left + width) * (top + height) > LARGEST_GIF:
        raise CodecError(f"a GIF of {top + height} x {left + width} pixels is more than {LARGEST_GIF}", "too-large")


def check_jp2(data: bytes) -> None:
    """Reject missing tiles, which OpenJPEG leaves black; deep colours, which Pillow truncates; and channels of unclear meaning."""
    start = max(data.find(SIZ), 0)
    kind, width, height, left, top, tile_width, tile_height, tile_left, tile_top, components = struct.unpack_from(
        ">2H8IH", data, start + 4
    )[1:]
    each = list(struct.iter_unpack("BBB", data[start + 42 : start + 42 + 3 * components]))
    if not tile_width or not tile_height or len(each) < components:
        raise CodecError("the JPEG 2000 codestream does not say its size", "truncated")
    deep = components == 1 and each[0] == (15, 1, 1)
    if kind >> 14 or any((left, top, tile_left, tile_top)) or not (deep or set(each) == {(7, 1, 1)}):
        raise unsupported("JPEG 2000 other than of 8 bits, or of grey of 16 bits, unsigned, without subsampling and offsets")
    head = data[:start]
    if b"ihdr" in head and struct.unpack_from(">II", head, head.index(b"ihdr") + 4) != (height, width):
        raise CodecError("the JPEG 2000 file says two sizes", "undecodable")
    if b"colr" in head and not JP2_COLORS.search(head):
        raise unsupported("JPEG 2000 with colours other than RGB, grey and CMYK")
    if b"pclr" in head:  # Pillow merges equal entries
        raise unsupported("JPEG 2000 with a palette")
    if b"cdef" in head and not _channels_in_order(head, components):
        raise unsupported("JPEG 2000 with these kinds of channels")
    _check_tiles(data[start:], -(-width // tile_width) * -(-height // tile_height))


def _channels_in_order(head: bytes, components: int) -> bool:
    """Return whether the channel definitions are the colours in order, then straight alpha."""
    start = head.index(b"cdef") + 4
    size = struct.unpack_from(">H", head, start)[0]
    found = sorted(struct.iter_unpack(">HHH", head[start + 2 : start + 2 + 6 * size]))
    colors = components - (components in (2, 4) and len(found) == components and found[-1][1] == 1)
    return found == [(k, 0, k + 1) for k in range(colors)] + [(k, 1, 0) for k in range(colors, components)]


def _check_tiles(stream: bytes, tiles: int) -> None:
    """Check that each tile-part ends where the next or the end of the codestream begins, and that no tile is missing."""
    at = 2
    seen = set[int]()
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


CHECKS: dict[str, Callable[[bytes], None]] = {
    "Gif": check_gif,
    "Ppm": check_pnm,
    "Jpeg2K": check_jp2,
}
