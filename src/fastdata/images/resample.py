"""A box of an image, resized into a sample.

The box may begin and end inside pixels: where a JPEG was decoded at half its size, an odd pixel of it lies between two.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import torch

from fastdata.torch_private import bilinear, bilinear_averaged

__all__ = ["pad", "resample"]

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[float, float, float, float]


def resample(pixels: Array, box: Box, out: Array, *, antialias: bool) -> None:
    """Fill `out`, [H, W, C], with the box (top, left, height, width) of `pixels`, [h, w, C] of the same dtype, uint8 or uint16; or
    RGB with a box of RGBA.

    Bilinear. With `antialias`, sides that shrink are averaged with a triangle as wide as what they leave out, which is Pillow's
    BILINEAR but for rounding, a code or rarely two: torch's kernel for uint8 has Pillow's arithmetic, vectorised.
    """
    y, x, height, width = box
    top, left, bottom, right = math.floor(y), math.floor(x), math.ceil(y + height), math.ceil(x + width)
    averaged = antialias and (height > out.shape[0] or width > out.shape[1])
    if top == y and left == x:
        pixels = pixels[top:bottom, left:right]
    else:
        pixels = _shifted(pixels[top : bottom + 1, left : right + 1], y - top, x - left)[: math.ceil(height), : math.ceil(width)]
    if pixels.shape[:2] == (height, width) == out.shape[:2]:
        _put(pixels, out)
        return
    same = pixels.shape[2] == out.shape[2]
    made = out if same else np.empty((*out.shape[:2], pixels.shape[2]), out.dtype)
    if averaged or pixels.shape[:2] != (height, width):
        _resize(pixels, (height, width), made, bilinear_averaged if averaged else bilinear)
    else:
        cv2.resize(pixels, made.shape[1::-1], dst=made, interpolation=cv2.INTER_LINEAR)
    if not same:
        _put(made, out)


def _put(pixels: Array, out: Array) -> None:
    """Pixels as they are, without the last channel of RGBA where `out` has three."""
    if pixels.shape[2] == out.shape[2]:
        out[...] = pixels
    elif pixels.size:
        cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB, dst=out)


def pad(pixels: Array, box: Box, out: Array, black: int) -> None:
    """Fill `out` with a box of its own size that reaches beyond `pixels`, where it is black."""
    top, left = math.floor(box[0]), math.floor(box[1])
    between = box[0] > top or box[1] > left
    canvas = np.empty((len(out) + 1, out.shape[1] + 1, out.shape[2]), out.dtype) if between else out
    canvas[...] = black
    to_y, to_x, y, x = max(-top, 0), max(-left, 0), max(top, 0), max(left, 0)
    inner = pixels[y : max(top + len(canvas), 0), x : max(left + canvas.shape[1], 0)]
    _put(inner, canvas[to_y : to_y + len(inner), to_x : to_x + inner.shape[1]])
    if between:
        resample(canvas, (box[0] - top, box[1] - left, *out.shape[:2]), out, antialias=False)


def _shifted(pixels: Array, down: float, across: float) -> Array:
    """`pixels` from that part of a pixel on: halfway between two is their mean; beyond the last is the last."""
    shape = pixels.shape
    if down:
        pixels = _mixed(pixels, np.concatenate([pixels[1:], pixels[-1:]]), down)
    if across:
        pixels = _mixed(pixels, np.concatenate([pixels[:, 1:], pixels[:, -1:]], axis=1), across)
    return pixels.reshape(shape)  # OpenCV drops a single channel


def _mixed(a: Array, b: Array, share: float) -> Array:
    return cv2.addWeighted(a, 1 - share, b.reshape(a.shape), share, 0)


def _resize(pixels: Array, size: tuple[float, float], out: Array, kernel: Any) -> None:
    """With a torch kernel; `size` is what of `pixels` becomes all of `out`, and may end inside of a pixel."""
    scales = out.shape[0] / size[0], out.shape[1] / size[1]
    if out.dtype != np.uint8:
        _resize_wide(pixels, scales, out, kernel)
    elif out.shape[2] < 3:
        _resize_thin(pixels, scales, out, kernel)
    else:
        whole = pixels.flags.c_contiguous and pixels.flags.writeable
        source = pixels if whole else pixels.copy()  # torch's own copy would wake its threads for it
        kernel(_planes(source), out.shape[:2], False, *scales, out=_planes(out))


def _resize_thin(pixels: Array, scales: tuple[float, float], out: Array, kernel: Any) -> None:
    """One or two channels: torch's kernel would spend as much on them as on four. Along columns alone, bytes are bytes: it
    takes four of a row as the channels of one pixel. So it goes along the columns, and along the rows turned into columns."""
    (rows, columns, channels), (height, width) = pixels.shape, out.shape[:2]
    slab: Array = np.empty((rows, -(-columns // 4) * 4, channels), np.uint8)
    slab[:, :columns] = pixels
    half: Array = np.empty((-(-height // 4) * 4, slab.shape[1], channels), np.uint8)
    _along_columns(slab, scales[0], half[:height], kernel)
    turned = cv2.transpose(half).reshape(slab.shape[1], len(half), channels)[:columns]
    made: Array = np.empty((width, len(half), channels), np.uint8)
    _along_columns(turned, scales[1], made, kernel)
    cv2.transpose(made[:, :height], dst=out)


def _along_columns(pixels: Array, scale: float, out: Array, kernel: Any) -> None:
    source, into = (_planes(array.reshape(len(array), -1, 4)) for array in (pixels, out))
    kernel(source, into.shape[2:], False, scale, None, out=into)


def _resize_wide(pixels: Array, scales: tuple[float, float], out: Array, kernel: Any) -> None:
    """The kernels know no uint16, which float32 holds exactly; and torch's for floats averages no columns of one pixel's width."""
    order = (0, 1, 3, 2) if out.shape[1] == 1 else (0, 1, 2, 3)
    into = _planes(out)
    wide = torch.empty(into.permute(order).shape, dtype=torch.float32, device="cpu")
    sides = (out.shape[:2], scales) if order[2] == 2 else (out.shape[1::-1], scales[::-1])
    kernel(_planes(pixels.copy()).permute(order).float().contiguous(), sides[0], False, *sides[1], out=wide)
    into.copy_(wide.round_().clamp_(0, np.iinfo(out.dtype).max).permute(order))


def _planes(array: Array) -> torch.Tensor:
    """[1, C, H, W], of the same memory."""
    return torch.from_numpy(array.transpose(2, 0, 1)[None])
