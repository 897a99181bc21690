"""JPEG from anywhere: scaled while decoding, CMYK, and strict about damage.

libjpeg decodes nearly anything and only warns, so a broken photo would become training data unnoticed. Here every warning
is an error, except for a few oddities that cameras and web servers produce and that cannot touch the pixels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, cmyk_to_rgb
from fastdata.images.header import Header, exif_orientation, unsupported
from fastdata.images.jpeg import decode_jpeg

__all__ = ["END_OF_IMAGE", "JpegHeader", "read_jpeg"]

Array = np.ndarray[Any, np.dtype[Any]]

SOI, EOI, SOS, APP0, APP1 = 0xD8, 0xD9, 0xDA, 0xE0, 0xE1
END_OF_IMAGE = bytes([0xFF, EOI])
FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})  # sequential and progressive, Huffman and arithmetic
PROGRESSIVE = (0xC2, 0xCA)
ODD_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF})  # lossless and hierarchical
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # what ends entropy-coded data
FILLER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
MAX_SCANS = 500  # a progressive file with more is made to burn time; real ones have about ten


@dataclass(frozen=True, kw_only=True)
class JpegHeader(Header):
    format: str = "jpeg"
    components: int  # 1 grey, 3 colour, 4 CMYK or YCCK
    progressive: bool

    @property
    def plain(self) -> bool:
        """Whether other decoders make the same of it: they mend, invert and turn images in ways of their own."""
        return self.components in (1, 3) and self.orientation == 1 and not self.progressive

    def pixels(self, data: bytes, least: tuple[int, int] = (0, 0), gray: bool = False, scratch: Array | None = None) -> Pixels:
        """As `SourceImage.decode` describes; `least` is (height, width) as stored."""
        den = self._scale(least)
        height, width = -(-self.height // den), -(-self.width // den)
        space, channels = ("CMYK", 4) if self.components == 4 else ("GRAY", 1) if gray else ("RGB", 3)
        buffer = _buffer(scratch, height * width * channels)
        decoded = _decode(data, self, colorspace=space, min_height=height, min_width=width, buffer=buffer)
        if decoded.shape != (height, width, channels):
            raise CodecError(f"the JPEG decoded to {decoded.shape}, its header says otherwise", "undecodable")
        return Pixels(cmyk_to_rgb(decoded) if channels == 4 else decoded[..., 0] if channels == 1 else decoded)

    def as_is(self, data: bytes, *, gray: bool = False) -> Array | None:
        """RGB [H, W, 3], or grey [H, W]: what readers of records make of the file, if that is what `pixels` makes of it.

        None: it has to be turned, mended, or brought to other channels, or decoding it takes too long.
        """
        if self.orientation != 1 or self.components not in ((1,) if gray else (1, 3)) or _too_many_scans(data, self):
            return None
        try:
            pixels = decode_jpeg(data, gray=gray)
        except CodecError:
            return None
        return pixels[:, :, 0] if gray else pixels

    def _scale(self, least: tuple[int, int]) -> int:
        """The largest of 1, 2, 4, 8 to divide by that keeps both sides at `least`."""
        if max(least) <= 0 or max(self.height, self.width) <= 8:  # so small that other factors give the same size
            return 1
        return next((d for d in (8, 4, 2) if -(-self.height // d) >= least[0] and -(-self.width // d) >= least[1]), 1)


def read_jpeg(data: bytes) -> JpegHeader:
    """The header; an EXIF orientation is taken from the first EXIF segment."""
    orientation, frame, progressive = 0, (0, 0, 0), False
    for marker, start, end in _segments(data):
        if marker in FRAMES:
            frame, progressive = _frame(data, start + 4), marker in PROGRESSIVE
        elif marker in ODD_FRAMES:
            raise unsupported("lossless or hierarchical JPEG")
        elif marker == APP1 and not orientation and data.startswith(b"Exif\0\0", start + 4):
            orientation = exif_orientation(data[start + 10 : end])
        elif marker in (SOS, EOI):
            break
    else:
        raise CodecError("the JPEG ends inside its header", "truncated")
    height, width, components = frame
    if not components:
        raise CodecError("the JPEG has no frame header", "undecodable")
    return JpegHeader(height=height, width=width, orientation=orientation or 1, components=components, progressive=progressive)


def _frame(data: bytes, at: int) -> tuple[int, int, int]:
    precision, height, width, components = struct.unpack_from(">BHHB", data, at)
    if precision != 8 or components not in (1, 3, 4):
        raise unsupported(f"JPEG with {components} components of {precision} bits")
    if height == 0:
        raise unsupported("JPEG with its height after the pixels (DNL)")
    return height, width, components


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of each segment up to EOI. Entropy-coded data follows the end of SOS; junk may follow others."""
    at = 0
    while found := MARKER.search(data, at):
        at = found.start()
        marker = data[at + 1]
        end = at + 2 + (0 if marker in (SOI, EOI) else int.from_bytes(data[at + 2 : at + 4], "big"))
        yield marker, at, end
        if marker == EOI:
            return
        at = end


def _buffer(scratch: Array | None, size: int) -> Array | None:
    if scratch is None or scratch.dtype != np.uint8 or not scratch.flags.c_contiguous or not scratch.flags.writeable:
        return None
    return scratch.reshape(-1) if scratch.size >= size else None


def _decode(data: bytes, header: JpegHeader, **options: Any) -> Array:
    """Decodes without tolerating any warning, after mending what is known to be harmless.

    libjpeg reports only its first warning, so decoding leniently after a harmless one could hide damage behind it.
    """
    if _too_many_scans(data, header):
        raise CodecError(f"a JPEG of more than {MAX_SCANS} scans", "too-large")
    mended, warning = data, ""
    for _ in range(3):  # as it is; mended; mended of the filler that another oddity hid
        try:
            return simplejpeg.decode_jpeg(mended, **options)  # type: ignore[no-any-return]
        except ValueError as error:
            warning = str(error)
        before, mended = mended, _mend(mended, header, warning)
        if mended == before:
            break
    if "subsampling level" in warning:
        raise unsupported(f"JPEG of {header.components} components with these sampling factors")
    cut = "remature end" in warning or END_OF_IMAGE not in data
    raise CodecError(f"the JPEG is damaged: {warning}", "truncated" if cut else "undecodable")


def _too_many_scans(data: bytes, header: JpegHeader) -> bool:
    return header.progressive and data.count(bytes([0xFF, SOS])) > MAX_SCANS


def _mend(data: bytes, header: JpegHeader, warning: str) -> bytes:
    """`data` without junk between segments, an unknown JFIF version, odd spectral parameters, filler before EOI, or a lack of EOI.

    Parameters are odd only in sequential files. EOI may be lacking behind the only scan of one, where a cut shows all the
    same; a cut progressive file looks complete, so it stays as it is.
    """
    pieces: list[bytes] = []
    markers: list[int] = []
    for marker, start, end in _segments(data):
        piece = data[start:end]
        if marker == APP0 and piece[4:9] == b"JFIF\0":
            piece = piece[:9] + b"\x01" + piece[10:]
        elif marker == SOS:
            following = MARKER.search(data, end)
            scan = data[end : following.start() if following else None]
            piece = (piece if header.progressive else piece[:-3] + b"\x00\x3f\x00") + scan
        elif marker == EOI and (filler := FILLER.search(warning)):
            pieces[-1] = _without_filler(pieces[-1], int(filler[1]))
        pieces.append(piece)
        markers.append(marker)
    only_scan = markers.count(SOS) == 1 and markers[-1] == SOS
    if only_scan and not header.progressive and pieces[-1][4:5] == bytes([header.components]):
        pieces.append(END_OF_IMAGE)
    return b"".join(pieces)


def _without_filler(scan: bytes, size: int) -> bytes:
    """Filler is one repeated byte; other bytes that the decoder left over mean that it lost its place."""
    return scan[:-size] if len(set(scan[-size:])) == 1 else scan
