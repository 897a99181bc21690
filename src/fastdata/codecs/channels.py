"""Parts that all image formats share: a header, and the conversion of stored pixels to the requested form.

Stored pixels are uint8 or uint16: grey [H, W], or [H, W, C] of grey and alpha, RGB, or RGB and alpha. All rounding is to nearest,
in integers, so results do not depend on the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import cv2
import numpy as np

from fastdata.errors import CodecError
from fastdata.types import Array

TILE = 1 << 16  # pixels that are processed at a time
FIXED_BYTES = 1 << 23  # what a decoder takes for the smallest image


@dataclass(frozen=True, kw_only=True)
class Header(ABC):
    """The header of an image file. Height and width are as stored, before `orientation` (as in EXIF) is applied.

    deep: whether the file may exceed the 8 bits that `pixels` returns. pixel_bytes: the most bytes that decoding a pixel takes.
    """

    format: str
    height: int
    width: int
    orientation: int = 1
    deep: bool = False
    pixel_bytes: int = 28

    def memory(self, least: tuple[int, int]) -> int:
        """Return the most bytes that decoding takes at a time, besides the file. least: a sufficient (height, width), as stored."""
        return self.pixel_bytes * self.height * self.width + FIXED_BYTES

    @abstractmethod
    def pixels(self, data: bytes) -> Array:
        """Decode the file `data` to its pixels as stored; raise `CodecError` (truncated, unsupported, undecodable)."""


def unsupported(what: str) -> CodecError:
    """Return the error for an intact image of a kind that is not read here."""
    return CodecError(f"{what} is not supported; convert it to ordinary PNG or JPEG", "unsupported")


def cmyk_to_rgb(absent: Array) -> Array:
    """Convert inverted CMYK [H, W, 4], the light that each ink lets through, to RGB as Pillow does: multiply by K."""
    return _product(absent[..., :3], absent[..., 3])


def split_alpha(pixels: Array) -> tuple[Array, Array | None]:
    """Return the colour of stored pixels, grey [H, W] or RGB [H, W, 3], and alpha [H, W] or None."""
    if pixels.ndim == 2 or pixels.shape[2] == 3:
        return pixels, None
    return pixels[..., 0].copy() if pixels.shape[2] == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB), pixels[..., -1]


def flatten(pixels: Array) -> Array:
    """Composite stored pixels on white, and keep their depth."""
    color, alpha = split_alpha(pixels)
    return color if alpha is None else ~_product(~to_channels(color, gray=False), alpha)


def _product(light: Array, weight: Array) -> Array:
    """Return light [H, W, 3] * weight [H, W], as fractions of their largest value. A few rows at a time save memory."""
    full, wide = np.iinfo(light.dtype).max, np.uint16 if light.dtype == np.uint8 else np.uint32
    out, step = np.empty_like(light), max(1, TILE // max(1, light.shape[1]))
    for rows in (slice(top, top + step) for top in range(0, len(light), step)):
        out[rows] = (light[rows].astype(wide) * weight[rows, :, None] + full // 2) // full
    return out


def to_channels(color: Array, gray: bool) -> Array:
    """Convert to grey or RGB."""
    if gray and color.ndim == 3:
        return cv2.cvtColor(color, cv2.COLOR_RGB2GRAY)
    if not gray and color.ndim == 2:
        return cv2.cvtColor(color, cv2.COLOR_GRAY2RGB)
    return color


def to_bits(color: Array, bits: int) -> Array:
    """Convert to uint8 or uint16; black stays black and white stays white."""
    if 8 * color.dtype.itemsize == bits:
        return color
    return np.multiply(color, np.uint16(257), dtype=np.uint16) if bits == 16 else cv2.convertScaleAbs(color, alpha=1 / 257)


def upright(color: Array, orientation: int) -> Array:
    """Turn pixels of EXIF orientation 1 to 8 upright; those of 1 are not copied."""
    if orientation >= 5:
        color = color.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        color = color[::-1]
    if orientation in (2, 3, 6, 7):
        color = color[:, ::-1]
    return np.ascontiguousarray(color)
