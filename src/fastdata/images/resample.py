"""Resize a box of an image into a sample.

The box may start and end inside pixels: in a JPEG decoded at half its size, an odd pixel lies between two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch

from fastdata.system.torch_private import bicubic, bicubic_averaged, bilinear, bilinear_averaged
from fastdata.types import Array

Box = tuple[float, float, float, float]

KERNELS = {"bilinear": (bilinear, bilinear_averaged), "bicubic": (bicubic, bicubic_averaged)}


def resample(pixels: Array, box: Box, out: Array, *, antialias: bool, interpolation: str = "bilinear") -> None:
    """Resize the box (top, left, height, width) of `pixels`, [h, w, C], into `out`, [H, W, C], of the same dtype, uint8 or uint16.

    With `antialias`, sides that shrink are averaged with a filter that spans skipped pixels. This is Pillow's BILINEAR or BICUBIC
    except for rounding errors of 1 or rarely 2: torch's uint8 kernels have Pillow's arithmetic, vectorised.
    """
    y, x, height, width = box
    top, left, bottom, right = math.floor(y), math.floor(x), math.ceil(y + height), math.ceil(x + width)
    # without averaging, a bicubic kernel is another one, OpenCV's
    averaged = antialias and (height > out.shape[0] or width > out.shape[1] or interpolation == "bicubic")
    if top == y and left == x:
        pixels = pixels[top:bottom, left:right]
    else:
        # no pixel beyond the box counts: whether there is one depends on what was decoded
        pixels = _shifted(pixels[top:bottom, left:right], y - top, x - left)[: math.ceil(height), : math.ceil(width)]
    if pixels.shape[:2] == (height, width) == out.shape[:2]:
        out[...] = pixels
    elif averaged or pixels.shape[:2] != (height, width):
        _resize(pixels, (height, width), out, KERNELS[interpolation][averaged])
    else:
        method = cv2.INTER_LINEAR if interpolation == "bilinear" else cv2.INTER_CUBIC
        cv2.resize(pixels, out.shape[1::-1], dst=out, interpolation=method)


def resample_part(
    pixels: Array, corner: tuple[int, int], rate: tuple[float, float], start: Sequence[int], out: Array, *, interpolation: str
) -> None:
    """Resize a whole image, and write the part of the result that begins at `start`, (row, column), to `out`, [H, W, C].

    pixels: the image from `corner` (row, column) on. rate: how many pixels of the image each new one spans, down and across.
    """
    (height, width), channels = out.shape[:2], pixels.shape[2]
    if rate == (1, 1):
        top, left = start[0] - corner[0], start[1] - corner[1]
        out[...] = pixels[top : top + height, left : left + width]
        return
    # torch's kernel begins at the image's corner: what lies before `pixels` is never set, and changes nothing in `out`
    canvas: Array = np.empty((corner[0] + len(pixels), corner[1] + pixels.shape[1], channels), pixels.dtype)
    canvas[corner[0] :, corner[1] :] = pixels
    resized: Array = np.empty((start[0] + height, start[1] + width, channels), pixels.dtype)
    _resize(canvas, (len(resized) * rate[0], resized.shape[1] * rate[1]), resized, KERNELS[interpolation][True])
    out[...] = resized[start[0] :, start[1] :]


def _shifted(pixels: Array, down: float, across: float) -> Array:
    """Shift by part of a pixel: halfway between two is their mean; the last pixel is repeated."""
    shape = pixels.shape
    if down:
        pixels = _mixed(pixels, np.concatenate([pixels[1:], pixels[-1:]]), down)
    if across:
        pixels = _mixed(pixels, np.concatenate([pixels[:, 1:], pixels[:, -1:]], axis=1), across)
    return pixels.reshape(shape)  # OpenCV drops a single channel


def _mixed(a: Array, b: Array, share: float) -> Array:
    return cv2.addWeighted(a, 1 - share, b.reshape(a.shape), share, 0)


def _resize(pixels: Array, size: tuple[float, float], out: Array, kernel: Any) -> None:
    """Resize with a torch kernel. `size` is the part of `pixels` that fills `out`; it may end inside a pixel."""
    scales = out.shape[0] / size[0], out.shape[1] / size[1]
    if out.dtype != np.uint8:
        _resize_wide(pixels, scales, out, kernel)
    elif out.shape[2] == 1:
        _resize_thin(pixels, scales, out, kernel)
    else:
        usable = pixels.flags.c_contiguous and pixels.flags.writeable
        source = pixels if usable else pixels.copy()  # torch's own copy would wake its threads
        kernel(_planes(source), out.shape[:2], False, *scales, out=_planes(out))


def _resize_thin(pixels: Array, scales: tuple[float, float], out: Array, kernel: Any) -> None:
    """Resize one channel, on which torch's kernel would spend as much time as on four.

    Along columns, four bytes of a row can pass as the channels of one pixel. So this resizes columns, transposes, and repeats.
    """
    (rows, columns), (height, width) = pixels.shape[:2], out.shape[:2]
    slab: Array = np.empty((rows, -(-columns // 4) * 4), np.uint8)
    slab[:, :columns] = pixels[:, :, 0]
    half: Array = np.empty((-(-height // 4) * 4, slab.shape[1]), np.uint8)
    _along_columns(slab, scales[0], half[:height], kernel)
    turned = cv2.transpose(half)[:columns]
    resized: Array = np.empty((width, len(half)), np.uint8)
    _along_columns(turned, scales[1], resized, kernel)
    cv2.transpose(resized[:, :height], dst=out)


def _along_columns(pixels: Array, scale: float, out: Array, kernel: Any) -> None:
    source, into = (_planes(array.reshape(len(array), -1, 4)) for array in (pixels, out))
    kernel(source, into.shape[2:], False, scale, None, out=into)


def _resize_wide(pixels: Array, scales: tuple[float, float], out: Array, kernel: Any) -> None:
    """Resize uint16 as float32, which holds it exactly. torch's float kernels fail if the result is one pixel wide."""
    order = (0, 1, 3, 2) if out.shape[1] == 1 else (0, 1, 2, 3)
    into = _planes(out)
    wide = torch.empty(into.permute(order).shape, dtype=torch.float32, device="cpu")
    sides = (out.shape[:2], scales) if order[2] == 2 else (out.shape[1::-1], scales[::-1])
    kernel(_planes(pixels.copy()).permute(order).float().contiguous(), sides[0], False, *sides[1], out=wide)
    into.copy_(wide.round_().clamp_(0, np.iinfo(out.dtype).max).permute(order))


def _planes(array: Array) -> torch.Tensor:
    """Return a [1, C, H, W] tensor that shares the array's memory."""
    return torch.from_numpy(array.transpose(2, 0, 1)[None])
