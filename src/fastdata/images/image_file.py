"""Any image a user has, as upright pixels.

`SourceImage` reads the header of encoded bytes, refuses what is no image, too large or damaged, and decodes the rest:
JPEG, PNG, WebP, BMP, TIFF, GIF, JPEG 2000, PNM, PAM, Sun raster and (where OpenCV has it) AVIF. The content decides, never a
file name.
Embedded ICC profiles are ignored: values are taken as they are stored. CMYK JPEG counts as inverted with and without an
Adobe marker, as image viewers do. Of animations and multi-page files the first picture counts; it alone has to be complete.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.bitmaps import read_bmp, read_gif, read_sun
from fastdata.images.channels import flatten, to_bits, to_channels, upright
from fastdata.images.header import Header, unsupported
from fastdata.images.jp2 import read_jp2
from fastdata.images.jpeg_file import JpegHeader, read_jpeg
from fastdata.images.opencv_files import read_avif, read_png, read_webp
from fastdata.images.pnm import read_pam, read_pnm
from fastdata.images.tiff import read_tiff

__all__ = ["SourceImage"]

Array = np.ndarray[Any, np.dtype[Any]]

READERS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], Header]], ...] = (
    (re.compile(rb"\xff\xd8"), read_jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), read_png),
    (re.compile(rb"RIFF.{4}WEBP", re.S), read_webp),
    (re.compile(rb"GIF8[79]a"), read_gif),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), read_tiff),
    (re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.S), read_bmp),
    (re.compile(rb"P[1-6][\s#]"), read_pnm),
    (re.compile(rb"P7\n"), read_pam),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"), read_jp2),
    (re.compile(rb"\x59\xa6\x6a\x95"), read_sun),
    (re.compile(rb".{4}ftyp(?!avis)(?:.{4}){0,60}?avif", re.S), read_avif),
)
KNOWN_UNSUPPORTED = (
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), "JPEG XL"),
    (re.compile(rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1|avis)", re.S), "HEIF or an image sequence"),
    (re.compile(rb"#\?(?:RADIANCE|RGBE)|\x76\x2f\x31\x01|P[Ff]\s"), "a floating-point image"),
    (re.compile(rb"8BPS|\0\0[\x01\x02]\0|P7 |DDS |qoif|%PDF|\s*<(?:svg|\?xml)"), "this kind of image file"),
)


class SourceImage:
    """An encoded image as found in the wild."""

    format: str
    height: int
    width: int

    def __init__(self, data: bytes, *, max_pixels: int = 1 << 28) -> None:
        """Reads the header only.

        `format` is "jpeg", "png", "webp", "bmp", "tiff", "gif" or "other"; `height` and `width` are upright, that is
        after EXIF orientation. Raises `CodecError`: empty, not-an-image, too-large (more than `max_pixels`, decided
        before decoding), truncated, unsupported, undecodable.
        """
        header = _read_header(data)
        if header.height * header.width > max_pixels:
            raise CodecError(f"{header.height} x {header.width} pixels is more than {max_pixels}", "too-large")
        self._data, self.header = data, header
        self.format = header.format
        self.height, self.width = _turned((header.height, header.width), header.orientation)

    def decode(
        self,
        *,
        at_least: tuple[int, int] = (0, 0),
        gray: bool = False,
        bits: int = 8,
        background: tuple[int, int, int] = (255, 255, 255),
        scratch: Array | None = None,
    ) -> Array:
        """Upright, C-contiguous [H, W, 3] RGB, or [H, W] when `gray`: uint8, or uint16 when `bits` is 16.

        `at_least` = (height, width), upright: a JPEG may come back scaled by 1/2, 1/4 or 1/8 with both sides still
        that large; (0, 0) means full size. Alpha is composited on `background` (RGB, 0 to 255). 16-bit sources become
        8 bits as round(x / 257), 8-bit sources become 16 bits as x * 257. Grey of colour is Rec. 601 luma.
        `scratch`, a C-contiguous uint8 array, saves a JPEG the fresh memory: when it is large enough the result may be
        a view of it, valid until it is used again. Raises `CodecError`: truncated, unsupported, undecodable.
        """
        if bits not in (8, 16):
            raise ValueError(f"bits must be 8 or 16, not {bits}")
        header = self.header
        if isinstance(header, JpegHeader):
            pixels = header.pixels(self._data, _turned(at_least, header.orientation), gray, scratch)
        else:
            pixels = header.pixels(self._data)
            if pixels.color.shape[:2] != (header.height, header.width):
                raise CodecError(f"the pixels are {pixels.color.shape[:2]}, the header says otherwise", "undecodable")
        return upright(to_bits(to_channels(flatten(pixels, background), gray), bits), header.orientation)


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """From (height, width) as stored to upright, or back."""
    return size[::-1] if orientation >= 5 else size


def _read_header(data: bytes) -> Header:
    try:
        header = _reader(data)(data)
    except (struct.error, IndexError):
        raise CodecError("the file ends inside its header", "truncated") from None
    if header.height <= 0 or header.width <= 0:
        raise CodecError(f"the header says {header.height} x {header.width} pixels", "undecodable")
    return header


def _reader(data: bytes) -> Callable[[bytes], Header]:
    if not data:
        raise CodecError("the file is empty", "empty")
    for pattern, reader in READERS:
        if pattern.match(data):
            return reader
    for pattern, name in KNOWN_UNSUPPORTED:
        if pattern.match(data):
            raise unsupported(name)
    raise CodecError("the content is no image format that is known here", "not-an-image")
