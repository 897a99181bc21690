"""Read class masks from files: palette indices, grey values, or colours that a table maps to classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.codecs.channels import to_channels
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.png_file import PngHeader
from fastdata.errors import CodecError

__all__ = ["Color", "count_classes", "decode_mask"]

Array = np.ndarray[Any, np.dtype[Any]]
Color = tuple[int, int, int]

BAND = 1 << 16  # pixels processed at a time, where numpy needs tens of bytes for each


def decode_mask(data: bytes, *, colors: tuple[Color, ...] = (), bits: int = 8, max_pixels: int = 1 << 28) -> Array:
    """Return the class of each pixel, uint8 or uint16 [H, W].

    Args:
        data: a PNG file. With a palette, the index is the class. With 1, 2 or 4 bits, values are 0, 1, 2 and so on.
        colors: RGB colour k is class k; empty: the values are the classes.
        bits: 8 or 16.
        max_pixels: as for `SourceImage`.

    Raises:
        CodecError: as SourceImage, and: not-png (most other formats are lossy, or stretch values), colors (there are colours and
            no table), unknown-color, range (a value needs more bits).
    """
    image = SourceImage(data, max_pixels=max_pixels)
    header = image.header
    if not isinstance(header, PngHeader):
        raise CodecError(f"a mask has to be PNG, this is {image.format}: others change values, or mean them otherwise", "not-png")
    if header.orientation != 1:
        raise CodecError("the mask says that it is turned (EXIF orientation), which masks are not", "unsupported")
    if colors:
        values = _class_numbers(to_channels(header.pixels(data).color, gray=False), colors)  # alpha is no class
    else:
        values = _values(header.values(data))
    if values.max(initial=0) >> bits:
        raise CodecError(f"a mask has the value {values.max()}: 8 bits hold 255; give --mask-bits 16", "range")
    return np.ascontiguousarray(values, np.uint16 if bits == 16 else np.uint8)


def count_classes(mask: Array) -> dict[int, int]:
    """Count the pixels of each class in a mask, uint8 or uint16. Absent classes are left out."""
    pixels = mask.reshape(-1)
    counts = np.zeros(1 << 8 * mask.dtype.itemsize, np.int64)
    for start in range(0, len(pixels), BAND):
        counts += np.bincount(pixels[start : start + BAND], minlength=len(counts))
    return {int(k): int(counts[k]) for k in np.flatnonzero(counts)}


def _values(values: Array) -> Array:
    if values.ndim == 3 and (values[..., :3] == values[..., :1]).all():
        values = values[..., 0]  # grey stored as RGB
    if values.ndim != 2:
        raise CodecError("the mask has colours: give the table of their classes with --palette FILE", "colors")
    return values


def _class_numbers(rgb: Array, colors: tuple[Color, ...]) -> Array:
    """Return the index of each pixel's colour in the table."""
    table = _code(np.array(colors))
    pixels = rgb.reshape(-1, 3)
    order = np.argsort(table, kind="stable")
    ordered = table[order]
    classes = np.empty(len(pixels), np.min_scalar_type(len(colors) - 1))
    count = 0
    found = None
    for start in range(0, len(pixels), BAND):
        band = pixels[start : start + BAND]
        codes = _code(band)
        at = np.searchsorted(ordered, codes).clip(max=len(order) - 1)
        classes[start : start + BAND] = order[at]
        unknown = band[ordered[at] != codes]
        count += len(unknown)
        found = found or tuple(unknown[:1].reshape(-1).tolist())
    if count:
        raise CodecError(f"{count} pixels have colours that the palette lacks, such as {found}", "unknown-color")
    return classes.reshape(rgb.shape[:2])


def _code(rgb: Array) -> Array:
    """Return a number for each colour, of 8 or 16 bits per channel."""
    red, green, blue = np.moveaxis(rgb.astype(np.int64), -1, 0)
    code: Array = red << 32 | green << 16 | blue
    return code
