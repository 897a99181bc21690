"""Read any image file as upright pixels.

The content decides the format, never the file name. libjpeg-turbo decodes JPEG, OpenCV PNG, and Pillow or tifffile all others.
ICC profiles are ignored. Only the first picture of animations and multi-page files is used; it alone has to be complete.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from fastdata.codecs.channels import Header, flatten, to_bits, to_channels, upright
from fastdata.codecs.jpeg_file import JpegHeader, read_jpeg
from fastdata.codecs.pillow_files import read_pillow, read_tiff
from fastdata.codecs.png_file import read_png
from fastdata.errors import CodecError
from fastdata.types import Array

READERS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], Header]], ...] = (
    (re.compile(rb"\xff\xd8"), read_jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), read_png),
    (re.compile(rb"II[*+]\0|MM\0\*"), read_tiff),
)
POINTER = re.compile(rb"version https://git-lfs|\s*/?(?:\.\./)*(?:\.git/)?annex/objects/")


class SourceImage:
    """An encoded image of any format, whose header has been read. `height` and `width` are upright: after EXIF orientation.

    Raises:
        CodecError: with the reason empty, not-an-image, too-large (more than `max_pixels`), truncated, unsupported or undecodable.
    """

    def __init__(self, data: bytes, *, max_pixels: int = 1 << 28) -> None:
        self._data, self.header = data, _read_header(data)
        height, width = self.header.height, self.header.width
        if height * width > max_pixels:
            raise CodecError(f"{height} x {width} pixels are more than {max_pixels}, the limit", "too-large")
        self.height, self.width = _turned((height, width), self.header.orientation)

    def memory(self, at_least: tuple[int, int] = (0, 0)) -> int:
        """Return the most bytes that `decode` takes at a time, with its result but without the file, as the header says."""
        return self.header.memory(_turned(at_least, self.header.orientation))

    def decode(
        self, *, at_least: tuple[int, int] = (0, 0), gray: bool = False, bits: int = 8, scratch: Array | None = None
    ) -> Array:
        """Decode to upright, C-contiguous RGB [H, W, 3] or grey [H, W]. Transparent pixels are composited on white.

        Args:
            at_least: upright (height, width). A JPEG may be scaled by 1/2, 1/4 or 1/8 if both sides stay that large; (0, 0): never.
            gray: return Rec. 601 luma.
            bits: 8 for uint8, 16 for uint16. From 16 to 8 bits, values become round(x / 257); from 8 to 16, x * 257. With
                16, files of more than 8 bits are rejected if only 8 can be read.
            scratch: memory of `decode_buffer` for decoding a JPEG. If it is large enough, the result may be a view of it.
        """
        header = self.header
        if isinstance(header, JpegHeader):
            pixels = header.pixels(self._data, _turned(at_least, header.orientation), gray, scratch)
        else:
            pixels = header.pixels(self._data)
            if bits == 16 and header.deep and pixels.dtype == np.uint8:
                what = f"the {header.format} may have more than 8 bits, but only 8 are read: make it a PNG, or leave out --bits 16"
                raise CodecError(what, "unsupported")
            if pixels.shape[:2] != (header.height, header.width):
                raise CodecError(f"{pixels.shape[:2]} pixels were decoded, but the header says otherwise", "undecodable")
        return upright(to_bits(to_channels(flatten(pixels), gray), bits), header.orientation)


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Convert (height, width) from stored to upright, or back."""
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
        pointer = "the file is a pointer of Git LFS or git-annex: fetch its content (git lfs pull, git annex get)"
        what = pointer if POINTER.match(data) else "the content is no image format that is known here"
        raise CodecError(what, "not-an-image")
    if header.height <= 0 or header.width <= 0:
        raise CodecError(f"the header says {header.height} x {header.width} pixels, which is no image", "undecodable")
    return header
