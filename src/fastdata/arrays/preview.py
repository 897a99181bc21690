"""Facts and previews of a store of arrays, for `fastdata info`, contact sheets and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.arrays.chunked import StoreArrays
from fastdata.store.info import Preview, class_colors, label_text
from fastdata.store.store import Store
from fastdata.types import Array

MAX_SIDE = 2048  # values read along each side
BAND = 32  # pixels of height of a signal


def facts(store: Store) -> dict[str, Any]:
    """Return the chunks, and the smallest and the largest sides of each variant."""
    arrays: Any = store.manifest.section("arrays")
    sides = {}
    for variant in store.manifest.variants if len(store) else ():
        shapes = store.samples["shape"][:, variant.is_mask and arrays.channels : arrays.dims]
        sides[variant.name] = {"smallest": shapes.min(0).tolist(), "largest": shapes.max(0).tolist()}
    return {"variants": sides, "arrays": {"chunk": [*arrays.chunk], "channels": arrays.channels}}


def previews(store: Store, rows: Array) -> Iterator[Preview]:
    """Yield arrays with their masks next to them. Volumes show their middle slice."""
    sources = [StoreArrays(store.location, mask=variant.is_mask) for variant in store.manifest.variants]
    names, axes = store.names(), sources[0].axes
    for row in rows.tolist():
        sides = sources[0].sides[row].tolist()
        start = [side // 2 for side in sides[:-2]] + [max(0, (side - MAX_SIDE) // 2) for side in sides[-2:]]
        shown = [1] * len(sides[:-2]) + [min(MAX_SIDE, side) for side in sides[-2:]]
        pictures = []
        for source in sources:
            values = np.empty(source.shape(row, shown), source.dtype)
            source.read(row, start, [False] * axes, values, 0)
            pictures.append(_picture(values.reshape(-1, *shown[-2:]), is_mask=source.mask))
        whole = " x ".join(map(str, sources[0].shape(row, sides)))
        middle = f" at {', '.join(map(str, start[:-2]))}" if axes > 2 else ""
        yield Preview(label_text(store, row), f"{row}: {names[row].rpartition('/')[2]}, {whole}{middle}", pictures)


def _picture(values: Array, *, is_mask: bool) -> Array:
    """Draw [channels, h, w], or a band of [channels, n], as RGB [H, W, 3]: classes in colours, three channels as RGB, else grey."""
    if values.ndim == 2:
        values = np.repeat(values[:, None], BAND, axis=1)
    if is_mask:
        return np.asarray(class_colors()[values[0]])
    grey = _stretched(values if len(values) == 3 else values[:1])
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(grey, 0, 2), (*grey.shape[1:], 3)))


def _stretched(values: Array) -> Array:
    """Scale values to uint8, clipping 1 percent of them at each end. NaN is black."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = np.percentile(finite, [1, 99]) if finite.size else (0.0, 0.0)
    if low == high and finite.size:
        low, high = finite.min(), finite.max()
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return (np.clip(scaled, 0, 1) * 255).round().astype(np.uint8)
