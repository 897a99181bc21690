"""The size of a stored image, and the pixels in that size."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

__all__ = ["center", "resize", "target_shape"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int]

NEARLY = 1.32  # a side shrinks this many times: below, a slight blur is as near to areas as two samples, and cheaper
SPREAD = 14.0  # of the blur: least squares over photos, for factors from 1.05 to 1.3


def target_shape(height: int, width: int, size: int | None, mode: str, upscale: bool) -> Shape:
    """The (height, width) to resize to; for mode "crop" before cropping.

    short: the short side becomes `size`; long: the long side; crop: as short; stretch: both. Sides are rounded to nearest.
    Without `upscale` an image that is smaller keeps its size (stretch: each side by itself).
    """
    if size is None:
        return height, width
    if mode == "stretch":
        return (size, size) if upscale else (min(size, height), min(size, width))
    side = max(height, width) if mode == "long" else min(height, width)
    if side <= size and not upscale:
        return height, width
    return max(1, (2 * height * size + side) // (2 * side)), max(1, (2 * width * size + side) // (2 * side))


def resize(image: Array, shape: Shape) -> Array:
    """Resize to (height, width): pixel areas averaged where a side shrinks, bicubic where it grows."""
    height, width = image.shape[:2]
    less = min(height, shape[0]), min(width, shape[1])
    if less != (height, width):
        image = _average(image, less)
    if less != shape:
        image = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
    return image


def _average(image: Array, shape: Shape) -> Array:
    """Pixel areas averaged: exactly where a side keeps its size or shrinks to half or less, within two codes elsewhere.

    OpenCV's area filter takes about as long as decoding a JPEG. Its bilinear one is vectorised, but sees only two pixels a
    side. So an image is sampled twice a side and those samples are averaged, or blurred first if it hardly shrinks: within
    1.9 codes of areas for the worst photo, in less than half of the time (benchmarks/choices.py).
    """
    factors = image.shape[0] / shape[0], image.shape[1] / shape[1]
    if not 1 < min(factors) <= max(factors) < 2:
        return cv2.resize(image, shape[::-1], interpolation=cv2.INTER_AREA)
    if max(factors) > NEARLY:
        twice = cv2.resize(image, (2 * shape[1], 2 * shape[0]), interpolation=cv2.INTER_LINEAR)
        return cv2.resize(twice, shape[::-1], interpolation=cv2.INTER_AREA)
    down, across = (np.array([a, 1 - 2 * a, a], np.float32) for a in ((f * f - 1) / SPREAD for f in factors))
    blurred = cv2.sepFilter2D(image, -1, across, down, borderType=cv2.BORDER_REPLICATE)
    return cv2.resize(blurred, shape[::-1], interpolation=cv2.INTER_LINEAR)


def center(image: Array, size: int) -> Array:
    """The square of `size` in the middle; of a smaller image the largest one."""
    height, width = image.shape[:2]
    side = min(size, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(image[top : top + side, left : left + side])
