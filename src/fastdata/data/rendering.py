"""From stored images to samples: read, decode, crop, resize, flip, transform."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from fastdata.codec.pixels import PixelFormat
from fastdata.codec.planes import BLACK, split_planes
from fastdata.data.records import Images
from fastdata.data.view import Sample, View, some
from fastdata.errors import LoaderError

__all__ = ["Allocate", "Timing", "render_batch", "render_each", "render_masks", "stack"]

Array = np.ndarray[Any, np.dtype[Any]]
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]

_local = threading.local()
_NONE: Array = np.empty(0, np.uint8)


@dataclass
class Timing:
    """Seconds that a batch took: waiting for the bytes of its images, decoding, and resizing and flipping."""

    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0


def render_batch(
    images: Images, view: View, rows: Array, plan: Sequence[Sample], allocate: Allocate, timing: Timing | None = None
) -> Array:
    """Samples that are not transformed, [n, H, W, C] or planes [n, H * 3/2, W, 1]; plan: what becomes of each row."""
    shapes = {sample.shape for sample in plan}
    if len(shapes) > 1:
        raise view.unequal(shapes)
    out = allocate((len(rows), *_shape(images.form, plan[0])), np.dtype(images.form.dtype))
    timing = timing or Timing()
    for row, sample, target in zip(rows.tolist(), plan, out, strict=True):
        _render(images, view, row, sample, target, timing)
    return out


def render_masks(
    masks: Images, view: View, rows: Array, plan: Sequence[Sample], outside: int, allocate: Allocate, timing: Timing | None = None
) -> Array:
    """The masks of what `render_batch` makes of the same rows and plan, [n, H, W]; `outside`: of pixels beyond the image."""
    out, timing = allocate((len(rows), *plan[0].shape), np.dtype(masks.form.dtype)), timing or Timing()
    for row, sample, target in zip(rows.tolist(), plan, out, strict=True):
        started = perf_counter()
        (region,) = masks.decode(row, masks.get(row), sample.window, _scratch)
        decoded = perf_counter()
        view.pick(sample, region.pixels[:, :, 0], target, outside)
        timing.decode_s += decoded - started
        timing.resize_s += perf_counter() - decoded
    return out


def render_each(
    images: Images,
    view: View,
    rows: Array,
    plan: Sequence[Sample],
    timing: Timing | None = None,
    before_transform: Callable[[int], None] = lambda k: None,
) -> list[Array]:
    """The samples, [H, W, C] each, transformed."""
    form, made, timing = images.form, [], timing or Timing()
    for k, (row, sample) in enumerate(zip(rows.tolist(), plan, strict=True)):
        pixels: Array = np.empty(_shape(form, sample), form.dtype)
        _render(images, view, row, sample, pixels, timing)
        if view.transform is not None:
            before_transform(k)
            pixels = _as_sample(view.transform(pixels), form.channels)
        made.append(pixels)
    return made


def _render(images: Images, view: View, row: int, sample: Sample, out: Array, timing: Timing) -> None:
    started = perf_counter()
    data = images.get(row)
    bytes(data[:: mmap.PAGESIZE])  # waits for the disk here, not in the decoder
    read = perf_counter()
    inside = sample.window.height > 0 and sample.window.width > 0
    regions = images.decode(row, data, sample.window, _scratch) if inside else None
    decoded = perf_counter()
    for k, (plane, black) in enumerate(_planes(images.form, sample, out)):
        view.render(sample, regions[k] if regions else None, plane, black)
    timing.read_s += read - started
    timing.decode_s += decoded - read
    timing.resize_s += perf_counter() - decoded


def _shape(form: PixelFormat, sample: Sample) -> tuple[int, int, int]:
    if form.planes and (sample.shape[0] % 2 or sample.shape[1] % 2):
        h, w = sample.shape
        raise LoaderError(f"a sample of {w} x {h} has no planes at half the resolution: use a crop of even sides, or codec rgb")
    return form.shape(*sample.shape)


def _planes(form: PixelFormat, sample: Sample, out: Array) -> Sequence[tuple[Array, int]]:
    """The arrays that make up a sample, and what is black in each."""
    return tuple(zip(split_planes(out, *sample.shape), BLACK, strict=True)) if form.planes else ((out, 0),)


def _scratch(size: int) -> Array:
    """Flat memory of this thread, kept: a fresh array for each image would cost more in page faults than a core brings in."""
    memory: Array = getattr(_local, "memory", _NONE)
    if memory.size < size:
        memory = _local.memory = np.empty(max(size, 1 << 20), np.uint8)
    return memory


def _as_sample(made: Any, channels: int) -> Array:
    """What a user's transform returned, if it can be a sample."""
    if not isinstance(made, np.ndarray) or made.ndim != 3 or made.shape[2] != channels:
        found = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
        raise LoaderError(f"transform returned {found}: it must return a numpy array [H, W, {channels}], as it gets one")
    return np.ascontiguousarray(made)


def stack(samples: Sequence[Array], allocate: Allocate) -> Array:
    """Samples of one shape as a batch [n, H, W, C]."""
    shapes = {sample.shape for sample in samples}
    if len(shapes) > 1:
        raise LoaderError(f"transform returned arrays of different shapes, {some(shapes)}: a batch needs one")
    return np.stack(samples, out=allocate((len(samples), *samples[0].shape), np.result_type(*samples)))
