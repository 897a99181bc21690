"""Compute the sizes of stored images, and resize to them."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

__all__ = ["center", "resize", "target_shapes"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int]

NEARLY = 1.32  # ratio up to which a slight blur is as exact as two samples, and cheaper
SPREAD = 14.0  # of the blur: least squares over photos, for ratios from 1.05 to 1.3


def target_shapes(sides: Array, size: int | None, mode: str, *, upscale: bool) -> Array:
    """Return the (height, width) to resize each image to, int64 [n, 2]; for mode "crop", before cropping.

    Args:
        sides: (height, width) of the images, int [n, 2].
        size: what a side becomes: the short one, and the other is truncated, as in torchvision's Resize (modes "short" and "crop");
            the long one ("long"); both ("stretch"). None: every image keeps its sides.
        mode: the option `--resize`.
        upscale: whether a smaller image is enlarged, or keeps its size ("stretch": each side by itself).
    """
    sides = sides.astype(np.int64)
    if size is None:
        return sides
    if mode == "stretch":
        return np.full_like(sides, size) if upscale else np.minimum(sides, size)
    side = (sides.max(axis=1) if mode == "long" else sides.min(axis=1))[:, None]
    resized = np.maximum(1, size * sides // side)
    return resized if upscale else np.where(side <= size, sides, resized)


def resize(image: Array, shape: Shape) -> Array:
    """Resize to (height, width): averaging pixel areas where a side shrinks, bicubic where it grows."""
    height, width = image.shape[:2]
    less = min(height, shape[0]), min(width, shape[1])
    if less != (height, width):
        image = _average(image, less)
    if less != shape:
        image = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
    return image


def _average(image: Array, shape: Shape) -> Array:
    """Average pixel areas: exactly where a side keeps its size or shrinks to half or less, within two codes elsewhere.

    OpenCV's area filter takes about as long as decoding a JPEG. Its bilinear filter is vectorised, but uses only two pixels per
    side. So an image is sampled twice per side and the samples are averaged, or it is blurred first if it hardly shrinks. For the
    worst photo this is within 1.9 codes of area averaging, in less than half the time (benchmarks/LOG.md).
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
    """Return the centre square of side `size`, or the largest one if the image is smaller."""
    height, width = image.shape[:2]
    side = min(size, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(image[top : top + side, left : left + side])
