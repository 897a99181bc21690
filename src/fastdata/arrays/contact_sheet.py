"""The contact sheet of arrays: a slice of each as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastdata.arrays.chunked import StoreArrays
from fastdata.images.contact_sheet import draw_tiles
from fastdata.store.canvas import BLUE, LIGHT, ORANGE, Canvas, class_colors
from fastdata.store.store import Store

__all__ = ["MOST", "draw_arrays", "draw_signal", "stretched"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 2048  # values read along each side
SIGNAL = 288  # pixels along each side of the picture of a signal


def draw_arrays(store: Store) -> tuple[Canvas, int, str]:
    """Draw arrays with their masks next to them. Volumes show their middle slice."""
    variant = store.manifest.variants[0]
    return draw_tiles(store, _pictures(store), variant.form.dtype, variant)


def _pictures(store: Store) -> Callable[[int], tuple[list[Array], str]]:
    """Return a function that draws a sample's array and mask, uint8 RGB, and makes their caption."""
    parts = [StoreArrays(store.path, mask=variant.is_mask) for variant in store.manifest.variants]

    def pictures(index: int) -> tuple[list[Array], str]:
        sides = parts[0].sides[index].tolist()
        start = [side // 2 for side in sides[:-2]] + [max(0, (side - MOST) // 2) for side in sides[-2:]]
        size = [1] * len(sides[:-2]) + [min(MOST, side) for side in sides[-2:]]
        drawn = []
        for part in parts:
            values = np.empty(part.shape(index, size), part.dtype)
            part.read(index, start, [False] * part.axes, values, 0)
            drawn.append(_picture(values.reshape(-1, *size[-2:]), is_mask=part.mask))
        middle = ", ".join(str(side // 2) for side in sides[:-2])
        return drawn, f", {' x '.join(map(str, parts[0].shape(index, sides)))}" + (f" at {middle}" if middle else "")

    return pictures


def _picture(values: Array, *, is_mask: bool) -> Array:
    """Draw [channels, h, w] or [channels, n] as RGB [H, W, 3]: classes as colours, three channels as RGB, others as grey."""
    if values.ndim == 2:
        return draw_signal(values)
    if is_mask:
        return np.asarray(class_colors(1 << 8 * values.itemsize)[values[0]])
    grey = stretched(values if len(values) == 3 else values[:1])
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(grey, 0, 2), (*grey.shape[1:], 3)))


def draw_signal(values: Array) -> Array:
    """Draw a line for each channel, at most four, scaled from the lowest to the highest value."""
    canvas = Canvas(SIGNAL, SIGNAL)
    heights = (1 - stretched(values[:4], 0) / 255.0) * (SIGNAL - 9) + 4
    for line, color in zip(heights, (BLUE, ORANGE, (60, 140, 80), LIGHT), strict=False):
        canvas.line(np.stack([np.linspace(0, SIGNAL - 1, len(line)), line], axis=1), color)
    return canvas.pixels


def stretched(values: Array, cut: float = 1.0) -> Array:
    """Scale values to uint8, clipping `cut` percent of them at both ends. NaN is black."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = np.percentile(finite, [cut, 100 - cut]) if finite.size else (0.0, 0.0)
    if low == high and finite.size:
        low, high = finite.min(), finite.max()
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return (np.clip(scaled, 0, 1) * 255).round().astype(np.uint8)
