"""Read class masks from files: palette indices, grey values, or colours that a table maps to classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.codecs.channels import to_channels
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.png_file import PngHeader
from fastdata.errors import CodecError

__all__ = ["Color", "count_classes", "decode_mask", "is_binary", "mask_values"]

Array = np.ndarray[Any, np.dtype[Any]]
Color = tuple[int, int, int]

SMOOTH_LEVELS, SMOOTH_SHARE = 4, 10  # so many different values, less than one in ten of which is equal to its neighbours
BAND = 1 << 16  # pixels processed at a time, where numpy needs tens of bytes for each


def decode_mask(
    data: bytes, *, colors: tuple[Color, ...] = (), bits: int = 8, max_pixels: int = 1 << 28, binary: bool = False
) -> Array:
    """Return the class of each pixel, uint8 or uint16 [H, W].

    Args:
        data: a PNG file. With a palette, the index is the class. With 1, 2 or 4 bits, values are 0, 1, 2 and so on.
        colors: RGB colour k is class k; empty: the values are the classes.
        bits: 8 or 16.
        max_pixels: as for `SourceImage`.
        binary: the masks of the store have two classes: in a file of 0 and the largest value, that is class 1.

    Raises:
        CodecError: as SourceImage, and: not-png (most other formats are lossy, or stretch values), colors (there are colours and
            no table), unknown-color, range (a value needs more bits), mask-values (what its values mean is not clear).
    """
    if colors:
        header = _header(data, max_pixels)
        values = _class_numbers(to_channels(header.pixels(data).color, gray=False), colors)  # alpha is no class
    else:
        values = mask_values(data, max_pixels=max_pixels)
        if binary and _has_high(values):
            if not is_binary(values):
                raise CodecError(
                    f"the mask has {values.max()} next to two other values, but other masks have 0 and {values.max()} alone, which "
                    "is class 1 there: write all masks with 0, 1, 2 and so on",
                    "mask-values",
                )
            values = values != 0
    if values.max(initial=0) >> bits:
        raise CodecError(f"a mask has the value {values.max()}: 8 bits hold 255; give --mask-bits 16", "range")
    return np.ascontiguousarray(values, np.uint16 if bits == 16 else np.uint8)


def mask_values(data: bytes, *, max_pixels: int = 1 << 28) -> Array:
    """Return the numbers in a mask's file, [H, W].

    Raises:
        CodecError: as `decode_mask`.
    """
    header = _header(data, max_pixels)
    values = header.values(data)
    if values.ndim == 3 and (values[..., :3] == values[..., :1]).all():
        values = values[..., 0]  # grey stored as RGB
    if values.ndim != 2:
        raise CodecError("the mask has colours: give the table of their classes with --palette FILE", "colors")
    if _is_smooth(values):
        raise CodecError(
            "the mask has smooth edges, whose values between 0 and 255 are no classes: write it without antialiasing", "mask-values"
        )
    return values


def _header(data: bytes, max_pixels: int) -> PngHeader:
    image = SourceImage(data, max_pixels=max_pixels)
    header = image.header
    if not isinstance(header, PngHeader):
        raise CodecError(f"a mask has to be PNG, this is {image.format}: others change values, or mean them otherwise", "not-png")
    if header.orientation != 1:
        raise CodecError("the mask says that it is turned (EXIF orientation), which masks are not", "unsupported")
    return header


def _has_high(values: Array) -> bool:
    """Return whether a mask has the largest value of 8 or 16 bits."""
    return int(values.max(initial=0)) in (255, 65535)


def is_binary(values: Array) -> bool:
    """Return whether a mask has no values but 0 and 1, or 0 and the largest value of 8 or 16 bits."""
    high = values.max(initial=0)
    return (high <= 1 or _has_high(values)) and bool(((values == 0) | (values == high)).all())


def _is_smooth(values: Array) -> bool:
    """Return whether a mask is mostly 0 and 255, with thin lines of other values: antialiased edges, or those of a JPEG."""
    if values.max(initial=0) != 255:
        return False
    inner = (values > 0) & (values < 255)
    count = int(inner.sum())
    if not count or 2 * count > values.size or not (values == 0).any():
        return False
    flat = inner[:-1, :-1] & (values[:-1, :-1] == values[1:, :-1]) & (values[:-1, :-1] == values[:-1, 1:])
    return len(np.unique(values[inner])) >= SMOOTH_LEVELS and SMOOTH_SHARE * int(flat.sum()) < count


def count_classes(mask: Array) -> dict[int, int]:
    """Count the pixels of each class in a mask, uint8 or uint16. Absent classes are left out."""
    pixels = mask.reshape(-1)
    counts = np.zeros(1 << 8 * mask.dtype.itemsize, np.int64)
    for start in range(0, len(pixels), BAND):
        counts += np.bincount(pixels[start : start + BAND], minlength=len(counts))
    return {int(k): int(counts[k]) for k in np.flatnonzero(counts)}


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
