"""yuv420: images as planes of luma and half-resolution colour, 1.5 bytes a pixel.

The layout is NV12: luma Y [H, W], then the colours Cb and Cr side by side, [H/2, W/2, 2]; both sides are even. The values are
those of JPEG: BT.601, full range, each colour sample at the centre of its four pixels (JFIF 1.02).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.errors import CodecError

__all__ = ["BLACK", "Planes", "encode_planes", "pad_even", "planes_to_rgb", "split_planes"]

Array = np.ndarray[Any, np.dtype[Any]]


class Planes(NamedTuple):
    """luma: [H, W, 1]; chroma: [H/2, W/2, 2], Cb and Cr; uint8."""

    luma: Array
    chroma: Array


BLACK = (0, 128)  # values of luma and chroma
COLORS = np.array([[-0.168735892, -0.331264108, 0.5, 128], [0.5, -0.418687589, -0.081312411, 128]])  # Cb and Cr of RGB 1


def pad_even(image: Array) -> Array:
    """Return an image [H, W] or [H, W, C] with even sides. An odd last row or column is repeated."""
    height, width = image.shape[:2]
    if height % 2 or width % 2:
        image = cv2.copyMakeBorder(image, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    return image


def encode_planes(image: Array) -> bytes:
    """Convert RGB uint8 [H, W, 3] to planes. An odd last row or column is repeated."""
    image = pad_even(image)
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    half = cv2.resize(image.astype(np.float32), (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)
    chroma = cv2.transform(half, COLORS)  # from the mean of four pixels, so it is rounded once
    return b"".join((luma.tobytes(), chroma.round().clip(0, 255).astype(np.uint8).tobytes()))


def split_planes(data: bytes | memoryview | Array, height: int, width: int) -> Planes:
    """Return views of the planes of an image with even sides.

    Raises:
        CodecError: if the size does not fit.
    """
    flat = np.frombuffer(data, np.uint8)
    if height % 2 or width % 2 or flat.size != height * width * 3 // 2:
        raise CodecError(f"a yuv420 record of {flat.size} bytes does not hold {height} x {width} pixels")
    pixels = height * width
    return Planes(flat[:pixels].reshape(height, width, 1), flat[pixels:].reshape(height // 2, width // 2, 2))


def planes_to_rgb(planes: Planes) -> Array:
    """Convert to RGB uint8 [H, W, 3], interpolating colours as a JPEG decoder does."""
    luma, chroma = planes
    wide = cv2.resize(chroma, luma.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    return cv2.cvtColor(np.dstack([luma, wide[:, :, ::-1]]), cv2.COLOR_YCrCb2RGB)
