"""The contact sheet of arrays: a slice of each, as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastdata.arrays.chunks import touched
from fastdata.errors import FormatError
from fastdata.images.contact_sheet import draw_tiles
from fastdata.store.canvas import BLUE, LIGHT, ORANGE, Canvas, class_colors
from fastdata.store.format import Variant
from fastdata.store.shards import ShardReader
from fastdata.store.store import Store

__all__ = ["draw_arrays"]

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 2048  # values a side that are read
SIGNAL = 288  # pixels a side of what is drawn of one axis


def draw_arrays(store: Store) -> tuple[Canvas, int, str]:
    """Draw arrays, and their masks next to them; of volumes, the slice in the middle."""
    variant = store.manifest.variants[0]
    return draw_tiles(store, _pictures(store), variant.form.dtype, variant)


def _pictures(store: Store) -> Callable[[int], tuple[list[Array], str]]:
    """A function that gives of a sample the pictures of its array and its mask, uint8 RGB, and what is to be said of them."""
    variants = store.manifest.variants
    readers = [store.reader(variant) for variant in variants]
    arrays = store.manifest.section("arrays")

    def pictures(index: int) -> tuple[list[Array], str]:
        shape = tuple(store.samples["shape"][index].tolist())[: arrays.dims]
        sides = shape[arrays.channels :]
        start = tuple(side // 2 for side in sides[:-2]) + tuple(max(0, (side - MOST) // 2) for side in sides[-2:])
        stop = tuple(side // 2 + 1 for side in sides[:-2]) + tuple(
            low + min(MOST, side) for low, side in zip(start[-2:], sides[-2:], strict=True)
        )
        found = []
        for variant, reader in zip(variants, readers, strict=True):
            values = _read(store, variant, reader, index, start, stop)
            flat = values.reshape(-1, *values.shape[-min(len(sides), 2) :])[: shape[0] if arrays.channels else 1]
            found.append(_picture(flat, is_mask=variant.is_mask))
        middle = "".join(f", {side // 2}" for side in sides[:-2])
        return found, f", {' x '.join(map(str, shape))}" + (f" at{middle[1:]}" if middle else "")

    return pictures


def _read(store: Store, variant: Variant, reader: ShardReader, index: int, start: tuple[int, ...], stop: tuple[int, ...]) -> Array:
    """A box of an array, channels first if it has any."""
    arrays, row = store.manifest.section("arrays"), store.samples[index]
    full = tuple(row["shape"][: arrays.dims].tolist())
    channels, sides = full[: arrays.channels], full[arrays.channels :]
    channels = () if variant.is_mask else channels
    dtype = np.dtype(variant.form.dtype)
    out = np.empty(channels + tuple(b - a for a, b in zip(start, stop, strict=True)), dtype)
    every = (slice(None),) * len(channels)
    for place, chunk, wanted, target in touched(sides, arrays.chunk, start, stop):
        try:
            values = np.frombuffer(reader.get(int(row["first"]) + place), dtype.newbyteorder("<")).reshape(channels + chunk)
        except ValueError as error:
            raise FormatError(f"sample {index} of {store.path}: {error}; run fastdata verify {store.path}") from None
        out[every + target] = values[every + wanted]
    return out


def _picture(values: Array, *, is_mask: bool) -> Array:
    """Of [channels, h, w] or [channels, n], RGB [H, W, 3]: classes as colours, three channels as RGB, others as grey."""
    if values.ndim == 2:
        return _signal(values)
    if is_mask:
        return np.asarray(class_colors(1 << 8 * values.itemsize)[values[0]])
    grey = _stretched(values if len(values) == 3 else values[:1])
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(grey, 0, 2), (*grey.shape[1:], 3)))


def _signal(values: Array) -> Array:
    """A line for each channel, at most four, from the lowest to the highest value."""
    canvas = Canvas(SIGNAL, SIGNAL)
    heights = (1 - _stretched(values[:4], 0) / 255.0) * (SIGNAL - 9) + 4
    for line, color in zip(heights, (BLUE, ORANGE, (60, 140, 80), LIGHT), strict=False):
        canvas.line(np.stack([np.linspace(0, SIGNAL - 1, len(line)), line], axis=1), color)
    return canvas.pixels


def _stretched(values: Array, cut: float = 1.0) -> Array:
    """As uint8, so that all but `cut` percent at both ends of the range are told apart; what is not finite is black."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = np.percentile(finite, [cut, 100 - cut]) if finite.size else (0.0, 0.0)
    if low == high and finite.size:
        low, high = finite.min(), finite.max()
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return (np.clip(scaled, 0, 1) * 255).round().astype(np.uint8)
