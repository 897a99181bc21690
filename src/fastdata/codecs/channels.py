"""What all image formats share: a header, pixels as files store them, and their conversion to the requested form.

Files differ in depth, channels, alpha and orientation. Each format returns a `Pixels`; everything after that is here and the same
for all. All rounding is to nearest, in integers, so results do not depend on the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import cv2
import numpy as np

from fastdata.errors import CodecError

__all__ = ["FIXED_BYTES", "Header", "Pixels", "unsupported"]
__all__ += ["cmyk_to_rgb", "flatten", "look_up", "to_bits", "to_channels", "upright"]

Array = np.ndarray[Any, np.dtype[Any]]

TILE = 1 << 16  # pixels
FIXED_BYTES = 1 << 23  # what a decoder takes for the smallest image


class Pixels(NamedTuple):
    """Stored pixels: `color` [H, W] grey or [H, W, 3] RGB, uint8 or uint16; `alpha` [H, W] of the same type."""

    color: Array
    alpha: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Header(ABC):
    """What a file declares before its pixels.

    `height` and `width` are as stored, before `orientation` (as in EXIF). `deep`: it may have more than 8 bits, of which `pixels`
    returns 8. `pixel_bytes`: the memory for a pixel while it is decoded.
    """

    pixel_bytes: ClassVar[int] = 28  # JPEG 2000 with alpha takes 25, most formats half of it

    format: str
    height: int
    width: int
    orientation: int = 1
    deep: bool = False

    def memory(self) -> int:
        """Return the most bytes that decoding and `flatten` take at a time, beside the file: measured for each library."""
        return self.pixel_bytes * self.height * self.width + FIXED_BYTES

    @abstractmethod
    def pixels(self, data: bytes) -> Pixels:
        """Decode the file `data` to its pixels as stored; raises `CodecError` (truncated, unsupported, undecodable)."""


def unsupported(what: str) -> CodecError:
    """Return the error for an intact image of a kind that is not read here."""
    return CodecError(f"{what} is not supported; convert the image to PNG or JPEG", "unsupported")


def look_up(indices: Array, palette: bytes, alpha: bytes = b"") -> Pixels:
    """Look up the colours of uint8 `indices`; entries beyond the palette are black, entries beyond `alpha` opaque."""
    if not palette:
        raise CodecError("the image has no palette", "undecodable")
    colors = np.frombuffer(palette[:768].ljust(768, b"\0"), np.uint8).reshape(256, 3)
    alphas = np.frombuffer(alpha[:256].ljust(256, b"\xff"), np.uint8)
    return Pixels(colors[indices], alphas[indices] if alpha else None)


def cmyk_to_rgb(absent: Array) -> Array:
    """Convert inverted CMYK [H, W, 4], the light that each ink lets through, to RGB: the product with K, as Pillow."""
    rgb = np.empty((*absent.shape[:2], 3), absent.dtype)
    for tile in _tiles(absent):
        rgb[tile] = _over(_wide(absent[tile][..., :3]) * _wide(absent[tile][..., 3:]), 8 * absent.dtype.itemsize)
    return rgb


def flatten(pixels: Pixels) -> Array:
    """Composite `pixels` on white, in the depth of the source, and in the memory of its colours if possible."""
    color, alpha = pixels
    if alpha is None:
        return color
    depth = 8 * color.dtype.itemsize
    full = (1 << depth) - 1
    flat = color if color.ndim == 3 and color.flags.writeable else np.empty((*color.shape[:2], 3), color.dtype)
    for tile in _tiles(color):
        part, weight = _wide(to_channels(color[tile], gray=False)), _wide(alpha[tile])[..., None]
        flat[tile] = _over(part * weight + full * (full - weight), depth)
    return flat


def _tiles(image: Array) -> Iterator[tuple[slice, slice]]:
    """Yield small parts that cover an image. For all of it at once, temporary arrays would take tens of bytes for each pixel."""
    height, width = image.shape[:2]
    rows = max(1, TILE // max(1, width))
    for top in range(0, height, rows):
        for left in range(0, width, TILE):
            yield slice(top, top + rows), slice(left, left + TILE)


def _wide(array: Array) -> Array:
    return array.astype(np.uint16 if array.dtype == np.uint8 else np.uint32)


def _over(total: Array, depth: int) -> Array:
    """Return round(total / (2**depth - 1)) for unsigned totals up to (2**depth - 1)**2, without a division."""
    total = total + (1 << (depth - 1))
    quotient: Array = (total + (total >> depth)) >> depth
    return quotient


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
    if bits == 16:
        return np.multiply(color, np.uint16(257), dtype=np.uint16)
    narrow = np.empty(color.shape, np.uint8)
    for tile in _tiles(color):
        narrow[tile] = (color[tile].astype(np.uint32) + 128) // 257
    return narrow


def upright(color: Array, orientation: int) -> Array:
    """Undo EXIF orientation 1 to 8; no copy for 1."""
    if orientation >= 5:
        color = color.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        color = color[::-1]
    if orientation in (2, 3, 6, 7):
        color = color[:, ::-1]
    return np.ascontiguousarray(color)
