"""A box of an image, resized into a sample.

The box may begin and end inside pixels: where a JPEG was decoded at half its size, an odd pixel of it lies between two.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import torch

__all__ = ["resample"]

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[float, float, float, float]

_averaged = torch.ops.aten._upsample_bilinear2d_aa.out
_bilinear = torch.ops.aten.upsample_bilinear2d.out


def resample(pixels: Array, box: Box, out: Array, *, antialias: bool) -> None:
    """Fill `out`, [H, W, C], with the box (top, left, height, width) of `pixels`, [h, w, C] of the same dtype, uint8 or uint16.

    Bilinear. With `antialias`, sides that shrink are averaged with a triangle as wide as what they leave out, which is Pillow's
    BILINEAR but for rounding, a code or rarely two: torch's kernel for uint8 has Pillow's arithmetic, vectorised.
    """
    y, x, height, width = box
    top, left, bottom, right = math.floor(y), math.floor(x), math.ceil(y + height), math.ceil(x + width)
    averaged = antialias and (height > out.shape[0] or width > out.shape[1])
    if top == y and left == x:
        pixels = pixels[top:bottom, left:right]
    else:
        pixels = _shifted(pixels[top : bottom + 1, left : right + 1], (y - top, x - left))[: bottom - top, : right - left]
    if averaged or pixels.shape[:2] != (height, width):
        _resize(pixels, (height, width), out, _averaged if averaged else _bilinear)
    elif pixels.shape == out.shape:
        out[...] = pixels
    else:
        cv2.resize(pixels, out.shape[1::-1], dst=out, interpolation=cv2.INTER_LINEAR)


def _shifted(pixels: Array, by: tuple[float, float]) -> Array:
    """`pixels` from `by` (down, across, both below 1) on: halfway between two pixels is their mean."""
    down, across = (np.array([1 - f, f], np.float32) for f in by)
    moved = cv2.sepFilter2D(pixels, -1, across, down, anchor=(0, 0), borderType=cv2.BORDER_REPLICATE)
    return moved.reshape(pixels.shape)  # OpenCV drops a single channel


def _resize(pixels: Array, size: tuple[float, float], out: Array, kernel: Any) -> None:
    """With a torch kernel; `size` is what of `pixels` becomes all of `out`, and may end inside of a pixel."""
    scales = out.shape[0] / size[0], out.shape[1] / size[1]
    whole = pixels.flags.c_contiguous and pixels.flags.writeable
    into, source = _planes(out), _planes(pixels if whole else pixels.copy())  # torch's own copy would wake its threads for it
    if out.dtype == np.uint8:
        kernel(source, out.shape[:2], False, *scales, out=into)
        return
    # the kernels know no uint16, which float32 holds exactly; and torch's for floats averages no columns of one pixel's width
    order = (0, 1, 3, 2) if out.shape[1] == 1 else (0, 1, 2, 3)
    wide = torch.empty(into.permute(order).shape, dtype=torch.float32, device="cpu")
    sides = (out.shape[:2], scales) if order[2] == 2 else (out.shape[1::-1], scales[::-1])
    kernel(source.permute(order).float().contiguous(), sides[0], False, *sides[1], out=wide)
    into.copy_(wide.round_().clamp_(0, np.iinfo(out.dtype).max).permute(order))


def _planes(array: Array) -> torch.Tensor:
    """[1, C, H, W], of the same memory."""
    return torch.from_numpy(array.transpose(2, 0, 1)[None])
