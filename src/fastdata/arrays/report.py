"""The sections of a report that only arrays have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.arrays.chunked import StoreArrays
from fastdata.arrays.contact_sheet import MOST, draw_signal, stretched
from fastdata.images.contact_sheet import label_text
from fastdata.images.report import mask_section, samples_section
from fastdata.images.report_pictures import colored
from fastdata.report.charts import histogram, many, number
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section
from fastdata.report.pictures import Picture, sample, switches
from fastdata.store.store import Store

__all__ = ["array_sections"]

Array = np.ndarray[Any, np.dtype[Any]]

MEASURED = 64  # most arrays whose values are measured
PART = 1 << 20  # most values of an array that are measured: its middle part
SHOWN = 24
AXES = "zyx"


def array_sections(store: Store) -> Iterator[Section]:
    """Yield the sections on a store's arrays."""
    parts = [StoreArrays(store.path, mask=variant.is_mask) for variant in store.manifest.variants]
    masked = len(parts) > 1
    names = store.names()
    yield samples_section(store, lambda index: _sample(store, parts, names, index), switches(masks=masked, boxes=False), SHOWN)
    yield _shapes(store, parts[0])
    yield _values(store, parts[0])
    if masked:
        yield mask_section(store)


def _sample(store: Store, parts: list[StoreArrays], names: list[str], index: int) -> Html:
    """Return an array: three slices through the middle of a volume, the picture of two axes, or the signal of one."""
    shape = parts[0].shape(index, parts[0].sides[index].tolist())
    label = label_text(store, index)
    planes = [_plane(parts, index, axis) for axis in range(3)] if parts[0].axes >= 3 else [_plane(parts, index, None)]
    pictures = [Picture(pixels, f"{label or 'array'} {index}: {names[index]}, {what}", mask) for pixels, mask, what in planes]
    said = f"{index}: {names[index].rpartition('/')[2]}"
    whole = " × ".join(map(str, shape))
    places = "; ".join(what for _, _, what in planes)
    more = [
        tag("div", f"{index}: {names[index]}", class_="soft"),
        tag("div", f"{whole}, {parts[0].dtype}: {places}", class_="soft"),
    ]
    return sample(pictures, label, f"{said}, {whole}", more)


def _plane(parts: list[StoreArrays], index: int, axis: int | None) -> tuple[Array, Array | None, str]:
    """Return a slice through the middle, uint8 RGB, the colours of its mask, and what it is.

    axis: which of the last three axes is cut; None: the last two are shown.
    """
    sides = parts[0].sides[index].tolist()
    whole = {len(sides) - 3 + k for k in range(3) if k != axis} if axis is not None else {len(sides) - 2, len(sides) - 1}
    size = [min(MOST, side) if k in whole else 1 for k, side in enumerate(sides)]
    start = [(side - n) // 2 for side, n in zip(sides, size, strict=True)]
    found = []
    for part in parts:
        values = np.empty(part.shape(index, size), part.dtype)
        part.read(index, start, [False] * part.axes, values, 0)
        found.append(values.reshape(-1, *(n for k, n in enumerate(size) if k in whole)))
    what = "the whole" if axis is None else f"{AXES[axis]} = {start[len(sides) - 3 + axis]}"
    if found[0].ndim == 2:
        return draw_signal(found[0]), None, what
    grey = stretched(found[0] if len(found[0]) == 3 else found[0][:1])
    pixels = np.ascontiguousarray(np.broadcast_to(np.moveaxis(grey, 0, 2), (*grey.shape[1:], 3)))
    return pixels, colored(found[1][0]) if len(found) > 1 else None, what


def _shapes(store: Store, arrays: StoreArrays) -> Section:
    section = store.manifest.section("arrays")
    charts = []
    for k in range(arrays.axes):
        name = AXES[k - arrays.axes] if k >= arrays.axes - len(AXES) else str(k)
        charts.append(histogram(arrays.sides[:, k], f"Side along axis {name}"))
    low, high = arrays.sides.min(0).tolist(), arrays.sides.max(0).tolist()
    channels = None if arrays.channels is None else sorted(set(arrays.channels.tolist()))
    said = f"Stored as {arrays.dtype} in chunks of {' × '.join(map(str, section.chunk))}."
    said += f" Channels: {', '.join(map(str, channels))}." if channels else ""
    tiles = (
        (" × ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(low, high, strict=True)), "sides"),
        (str(arrays.dtype), "values"),
    )
    facts = {"smallest": low, "largest": high, "dtype": str(arrays.dtype), "chunk": list(section.chunk), "channels": channels}
    return Section("shapes", "Shapes", join(tag("p", said, class_="soft"), tag("div", charts, class_="columns")), facts, (), tiles)


def _values(store: Store, arrays: StoreArrays) -> Section:
    """Return the section on values, in the middle part of evenly spaced arrays."""
    count = min(len(store), MEASURED)
    edge = int(PART ** (1 / arrays.axes))
    found, constant, broken = [], [], []
    for k in range(count):
        index = k * len(store) // count
        size = [min(side, edge) for side in arrays.sides[index].tolist()]
        start = [(side - n) // 2 for side, n in zip(arrays.sides[index].tolist(), size, strict=True)]
        values = np.empty(arrays.shape(index, size), arrays.dtype)
        arrays.read(index, start, [False] * arrays.axes, values, 0)
        finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.ravel()
        if len(finite) < values.size:
            broken.append(index)
        if not len(finite) or finite.min() == finite.max():
            constant.append(index)
        found.append(finite[:: max(1, len(finite) // 20_000)])
    every = np.concatenate(found)
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    said = f"Measured in the middle (at most {edge} values along each side) of {number(count)} of {many(len(store), 'array')}."
    facts: dict[str, Any] = {
        "measured": count,
        "min": low,
        "max": high,
        "mean": float(every.mean(dtype=np.float64)) if len(every) else None,
    }
    facts |= {"constant": constant, "not_finite": broken}
    findings = []
    if constant:
        findings.append(f"{many(len(constant), 'array', 'has')} one value only, the first is {constant[0]}.")
    if broken:
        findings.append(f"{many(len(broken), 'array', 'has')} values that are not finite, the first is {broken[0]}.")
    body = join(tag("p", said, class_="soft"), histogram(every, "Values"))
    return Section("values", "Values", body, facts, tuple(findings))
