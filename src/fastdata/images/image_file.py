"""Any image a user has, as upright pixels.

`SourceImage` reads the header of encoded bytes, refuses what is no image, too large or damaged, and decodes the rest: JPEG with
libjpeg-turbo, PNG and WebP with OpenCV, all others with Pillow. The content decides, never a file name.
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
from fastdata.images.channels import flatten, to_bits, to_channels, upright
from fastdata.images.header import Header, unsupported
from fastdata.images.jpeg_file import JpegHeader, read_jpeg
from fastdata.images.jxl_file import read_jxl
from fastdata.images.opencv_files import read_png, read_webp
from fastdata.images.pillow_files import read_pillow
from fastdata.images.tiff_file import read_tiff

__all__ = ["SourceImage"]

Array = np.ndarray[Any, np.dtype[Any]]

READERS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], Header]], ...] = (
    (re.compile(rb"\xff\xd8"), read_jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), read_png),
    (re.compile(rb"RIFF.{4}WEBP", re.S), read_webp),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), read_tiff),
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), read_jxl),
)
KNOWN_UNSUPPORTED = (
    (re.compile(rb"#\?(?:RADIANCE|RGBE)|\x76\x2f\x31\x01|P[Ff]\s"), "a floating-point image"),
    (re.compile(rb"P7\n"), "PAM"),
    (re.compile(rb"P7 |8BPS|DDS |\0\0[\x01\x02]\0|icns|%PDF|\s*<(?:svg|\?xml)"), "this kind of image file"),
)


class SourceImage:
    """An encoded image as found in the wild."""

    format: str
    height: int
    width: int

    def __init__(self, data: bytes, *, max_pixels: int = 1 << 28) -> None:
        """Reads the header only.

        `format` is "jpeg", "png", "webp", "tiff", "jxl", "heif", or as Pillow calls its plugin, such as "gif", "bmp" or "jpeg2k".
        `height` and `width` are upright, that is after EXIF orientation. Raises `CodecError`: empty, not-an-image, too-large
        (more than `max_pixels`, decided before decoding), truncated, unsupported, undecodable.
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
        8 bits as round(x / 257), 8-bit sources become 16 bits as x * 257; what has more than 8 bits and is only read with 8 is
        refused for 16. Grey of colour is Rec. 601 luma.
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
            if bits == 16 and header.deep and pixels.color.dtype == np.uint8:
                what = f"the {header.format} has more than 8 bits, and is read with 8: convert it to PNG, or do without --bits 16"
                raise CodecError(what, "unsupported")
            if pixels.color.shape[:2] != (header.height, header.width):
                raise CodecError(f"the pixels are {pixels.color.shape[:2]}, the header says otherwise", "undecodable")
        return upright(to_bits(to_channels(flatten(pixels, background), gray), bits), header.orientation)


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """From (height, width) as stored to upright, or back."""
    return size[::-1] if orientation >= 5 else size


def _read_header(data: bytes) -> Header:
    if not data:
        raise CodecError("the file is empty", "empty")
    reader = next((reader for pattern, reader in READERS if pattern.match(data)), read_pillow)
    try:
        header = reader(data)
    except (struct.error, IndexError):
        raise CodecError("the file ends inside its header", "truncated") from None
    if header is None:
        raise _unknown(data)
    if header.height <= 0 or header.width <= 0:
        raise CodecError(f"the header says {header.height} x {header.width} pixels", "undecodable")
    return header


def _unknown(data: bytes) -> CodecError:
    name = next((name for pattern, name in KNOWN_UNSUPPORTED if pattern.match(data)), None)
    return CodecError("the content is no image format that is known here", "not-an-image") if name is None else unsupported(name)
