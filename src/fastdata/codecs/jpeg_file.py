"""Read JPEG files of any origin, CMYK included: scale while decoding, and refuse damaged ones.

libjpeg decodes nearly anything and only warns, so a broken photo would silently become training data. Here every warning is an
error, except for a few oddities of cameras and web servers that cannot affect the pixels.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import simplejpeg

from fastdata.codecs.channels import FIXED_BYTES, Header, cmyk_to_rgb, unsupported
from fastdata.codecs.jpeg_grid import decode_buffer, decode_jpeg
from fastdata.codecs.pillow_files import exif_orientation
from fastdata.errors import CodecError
from fastdata.types import Array

SOI, EOI, SOS, APP0, APP1, APP2 = 0xD8, 0xD9, 0xDA, 0xE0, 0xE1, 0xE2
END_OF_IMAGE = bytes([0xFF, EOI])
FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})  # sequential and progressive, Huffman and arithmetic
PROGRESSIVE = (0xC2, 0xCA)
ODD_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF})  # lossless and hierarchical
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # ends entropy-coded data
FILLER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


@dataclass(frozen=True, kw_only=True)
class JpegHeader(Header):
    format: str = "jpeg"
    components: int  # 1 grey, 3 colour, 4 CMYK or YCCK
    progressive: bool

    def memory(self, least: tuple[int, int]) -> int:
        coefficients = 2 * self.progressive * self.height * self.width  # in memory at any scale
        return self.components * (4 * math.prod(self._scaled(least)) + coefficients) + FIXED_BYTES

    def pixels(self, data: bytes, least: tuple[int, int] = (0, 0), gray: bool = False, scratch: Array | None = None) -> Array:
        """Decode as `SourceImage.decode` describes. `least` is (height, width) as stored."""
        height, width = self._scaled(least)
        space, channels = ("CMYK", 4) if self.components == 4 else ("GRAY", 1) if gray else ("RGB", 3)
        size = height * width * channels
        buffer = scratch if scratch is not None and scratch.size >= size else decode_buffer(size)
        decoded = _decode(data, self, colorspace=space, min_height=height, min_width=width, buffer=buffer)
        if decoded.shape != (height, width, channels):
            raise CodecError(f"the JPEG decodes to shape {decoded.shape}, but its header says otherwise", "undecodable")
        return cmyk_to_rgb(decoded) if channels == 4 else decoded[..., 0] if channels == 1 else decoded

    def as_is(self, data: bytes, *, gray: bool = False) -> Array | None:
        """Decode to RGB [H, W, 3] or grey [H, W] as readers of records do. Return None if the file cannot be a record as it is."""
        if self.orientation == 1 and self.components in ((1,) if gray else (1, 3)):
            with suppress(CodecError):
                pixels = decode_jpeg(data, gray=gray)
                return pixels[:, :, 0] if gray else pixels
        return None

    def _scaled(self, least: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) at the smallest scale, of 1, 1/2, 1/4 and 1/8, that leaves no side below `least`."""
        sizes = [(-(-self.height // d), -(-self.width // d)) for d in (8, 4, 2, 1)]
        if max(least) <= 0 or max(self.height, self.width) <= 8:  # in tiny images, several scales give the same size
            return sizes[-1]
        return next((size for size in sizes if size[0] >= least[0] and size[1] >= least[1]), sizes[-1])


def read_jpeg(data: bytes) -> JpegHeader:
    """Read the header. The EXIF orientation comes from the first EXIF segment."""
    exif, frame, progressive = b"", (8, 1, 1, 0), False
    for marker, start, end in _segments(data):
        if marker in FRAMES:
            frame, progressive = struct.unpack_from(">BHHB", data, start + 4), marker in PROGRESSIVE
        elif marker in ODD_FRAMES:
            raise unsupported("lossless or hierarchical JPEG")
        elif marker == APP1 and not exif and data.startswith(b"Exif\0\0", start + 4):
            exif = data[start + 10 : end]
        elif marker in (SOS, EOI):
            break
    else:
        raise CodecError("the JPEG ends inside its header", "truncated")
    precision, height, width, components = frame
    if precision != 8 or components not in (1, 3, 4) or height == 0:  # which is then said after the pixels (DNL)
        raise unsupported(f"JPEG of height {height} with {components} components of {precision} bits")
    turn = exif_orientation(exif)
    return JpegHeader(height=height, width=width, orientation=turn, components=components, progressive=progressive)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment up to EOI. Entropy-coded data follows SOS; junk may follow other segments."""
    at = 0
    while found := MARKER.search(data, at):
        at = found.start()
        marker = data[at + 1]
        end = at + 2 + (0 if marker in (SOI, EOI) else int.from_bytes(data[at + 2 : at + 4], "big"))
        yield marker, at, end
        if marker == EOI:
            return
        at = end


def _decode(data: bytes, header: JpegHeader, **options: Any) -> Array:
    """Decode without tolerating any warning, after mending known harmless faults.

    libjpeg reports only its first warning, so decoding leniently after a harmless one could hide damage.
    """
    mended, warning = data, ""
    for _ in range(3):  # unchanged; mended; mended of filler that another oddity hid
        try:
            return simplejpeg.decode_jpeg(mended, **options)  # type: ignore[no-any-return]
        except ValueError as error:
            warning = str(error)
        before, mended = mended, _mend(mended, header, warning)
        if mended == before:
            break
    if "subsampling level" in warning:
        raise unsupported(f"JPEG of {header.components} components with unusual sampling factors")
    cut = "remature end" in warning or END_OF_IMAGE not in data
    raise CodecError(f"the JPEG is damaged: {warning}", "truncated" if cut else "undecodable")


def _mend(data: bytes, header: JpegHeader, warning: str) -> bytes:
    """Mend junk between segments, unknown JFIF versions, odd spectral parameters, filler before EOI, and a missing EOI; drop APP2.

    libjpeg-turbo counts the pieces of an ICC profile, which are in APP2. A missing EOI is mended only in sequential files, since
    truncation of their only scan is still detected, while a truncated progressive file looks complete.
    """
    pieces, markers = list[bytes](), list[int]()
    for marker, start, end in _segments(data):
        if marker == APP2:
            continue
        piece = data[start:end]
        if marker == APP0 and piece[4:9] == b"JFIF\0":
            piece = piece[:9] + b"\x01" + piece[10:]
        elif marker == SOS:
            following = MARKER.search(data, end)
            scan = data[end : following.start() if following else None]
            piece = (piece if header.progressive else piece[:-3] + b"\x00\x3f\x00") + scan
        elif marker == EOI and (filler := FILLER.search(warning)) and len(set(pieces[-1][-int(filler[1]) :])) == 1:
            pieces[-1] = pieces[-1][: -int(filler[1])]  # one repeated byte; others mean that the decoder lost its place
        pieces.append(piece)
        markers.append(marker)
    only_scan = markers.count(SOS) == 1 and markers[-1] == SOS
    if only_scan and not header.progressive and pieces[-1][4:5] == bytes([header.components]):
        pieces.append(END_OF_IMAGE)
    return b"".join(pieces)
