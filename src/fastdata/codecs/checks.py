"""Checks for what Pillow would silently read wrongly, made on a file's bytes before Pillow reads them.

Each check raises a `CodecError`, or a `struct.error` or `IndexError` where the file ends inside what it reads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from fastdata.codecs.header import unsupported
from fastdata.errors import CodecError

__all__ = ["CHECKS"]

SIZ = b"\xff\x4f\xff\x51"  # start of a JPEG 2000 codestream
END = b"\xff\xd9"
TILE = re.compile(rb"\xff\x90\0\x0a(..)", re.S)  # the start of a tile-part, which no compressed data contains, with its number
JP2_COLORS = re.compile(
    rb"colr(?:\x01..\0\0\0[\x0c\x10\x11\x12]|\x02.{18}(?:RGB |GRAY))", re.S
)  # CMYK, sRGB, grey, sYCC; a profile


def check_webp(data: bytes) -> None:
    """Reject a file that is shorter than it says, with the reason that Pillow does not give."""
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise CodecError(f"the WebP says {int.from_bytes(data[4:8], 'little') + 8} bytes, the file has {len(data)}", "truncated")


def check_pnm(data: bytes) -> None:
    """Reject texts whose last number may be cut."""
    if data[1:2] in b"23" and data[-1:].isdigit():
        raise CodecError("the PNM ends with a digit, and may have lost others: a text ends with white space", "truncated")
    if data[1:2] in b"123" and data.count(b"#") > 1000:  # Pillow's time is quadratic in them
        raise unsupported("PNM with more than a thousand comments")


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
    if b"cdef" in head:
        colors, at = [(k, 0, k + 1) for k in range(components)], head.index(b"cdef") + 6
        with_alpha = [*colors[:-1], (components - 1, 1, 0)] if components in (2, 4) else colors  # straight
        number = struct.unpack_from(">H", head, at - 2)[0]
        if sorted(struct.iter_unpack(">HHH", head[at : at + 6 * number])) not in (colors, with_alpha):
            raise unsupported("JPEG 2000 with these kinds of channels")
    tiles, seen = -(-width // tile_width) * -(-height // tile_height), len(set(TILE.findall(data, start)))
    if seen < tiles or data.find(END, start) < 0:
        raise CodecError(f"the JPEG 2000 codestream has {seen} of {tiles} tiles, or no end", "truncated")


CHECKS: dict[str, Callable[[bytes], None]] = {
    "Ppm": check_pnm,
    "WebP": check_webp,
    "Jpeg2K": check_jp2,
}
