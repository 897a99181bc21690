"""Make samples from stored images: read, decode, crop, resize, flip, transform."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from fastdata.codecs.jpeg_crop import JpegBatch, Region, Window, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.data.dataset import Allocate, Timing
from fastdata.errors import CodecError, LoaderError
from fastdata.images.records import Images
from fastdata.images.view import Sample, View, shorten
from fastdata.types import Array

MIN_SCRATCH_BYTES = 1 << 21  # of scratch memory: holds the largest batch of JPEGs

# A window joins a part if decoding the part with it costs less than decoding it alone: see benchmarks/LOG.md, "Views".
START = 16_000  # pixels that could be decoded in the time that each decode takes to start

_local = threading.local()


def render_batch(
    images: Images,
    views: Sequence[View],
    rows: Array,
    plans: Sequence[Sequence[Sample]],
    allocate: Allocate,
    timing: Timing | None = None,
    before_transform: Callable[[int, int], None] = lambda view, k: None,
) -> list[Array]:
    """Return the samples of each view, [n, H, W, C]. They are made in any order.

    plans: for each view, an entry for each row. before_transform: called with the number of the view, and that of the row.
    """
    form, timing = images.form, timing or Timing()
    dtype = np.dtype(form.dtype)
    transformed = any(view.transform is not None for view in views)
    outs: list[Any]
    if transformed:
        outs = [[None] * len(rows) for _ in views]
    else:
        shapes = [view.one_shape(plan) for view, plan in zip(views, plans, strict=True)]
        outs = [allocate((len(rows), *shape, form.channels), dtype) for shape in shapes]
    for v, k, region in _decoded(images, rows, plans, timing):
        view, sample = views[v], plans[v][k]
        started = perf_counter()
        out = np.empty((*sample.shape, form.channels), dtype) if transformed else outs[v][k]  # memory that is still in the cache
        view.render(sample, region, out)
        timing.resize_s += perf_counter() - started
        if view.user is not None:
            before_transform(v, k)
            out = view.user(out, form.channels)
        if transformed:
            outs[v][k] = out
    return [_stack(samples, allocate) for samples in outs] if transformed else outs


def render_masks(
    masks: Images, view: View, rows: Array, plan: Sequence[Sample], outside: int, allocate: Allocate, timing: Timing | None = None
) -> Array:
    """Return the masks, [n, H, W], of the samples that `render_batch` makes. Pixels beyond the image get the class `outside`."""
    out = allocate((len(rows), *plan[0].shape), np.dtype(masks.form.dtype))
    timing = timing or Timing()
    with _scratch_memory() as scratch:
        for row, sample, target in zip(rows.tolist(), plan, out, strict=True):
            started = perf_counter()
            region = masks.decode(row, masks.get(row), sample.window, scratch)
            decoded = perf_counter()
            view.render_mask(sample, region.pixels[:, :, 0], target, outside)
            timing.decode_s += decoded - started
            timing.resize_s += perf_counter() - decoded
    return out


def _decoded(
    images: Images, rows: Array, plans: Sequence[Sequence[Sample]], timing: Timing
) -> Iterator[tuple[int, int, Region | None]]:
    """Yield the view and the position of each sample, and a region that contains its window, or None if the window is empty.

    A region is valid until the next item.
    """
    if len(plans) == 1:
        for k, region in _regions(images, rows, [sample.window for sample in plans[0]], timing):
            yield 0, k, region
        return
    parts = [
        (position, window, members)
        for position, samples in enumerate(zip(*plans, strict=True))
        for window, members in _joined([sample.window for sample in samples], images.indexed)
    ]
    rows = rows[[position for position, _, _ in parts]]
    for number, region in _regions(images, rows, [window for _, window, _ in parts], timing):
        position, _, members = parts[number]
        for view in members:
            yield view, position, region


def _joined(windows: Sequence[Window], cuts: bool) -> list[tuple[Window, list[int]]]:
    """Join the windows of one image, the largest first, where that saves time. Return each with the views that lie in it.

    Windows are joined only if they are decoded at the same scale, so that no pixel depends on what is shared. If `cuts` is False,
    images are decoded whole in any case, and windows are always joined.
    """
    parts: list[tuple[Window, list[int]]] = []
    for view in sorted(range(len(windows)), key=lambda view: -windows[view].area):
        window = windows[view]
        for number, (part, views) in enumerate(parts):
            top, left = min(part.top, window.top), min(part.left, window.left)
            bottom = max(part.top + part.height, window.top + window.height)
            right = max(part.left + part.width, window.left + window.width)
            union = part._replace(top=top, left=left, height=bottom - top, width=right - left)
            fits = part[4:] == window[4:] and part.empty == window.empty
            if fits and (not cuts or union.area - part.area <= window.area + START):
                parts[number] = union, [*views, view]
                break
        else:
            parts.append((window, [view]))
    return parts


def _regions(images: Images, rows: Array, windows: Sequence[Window], timing: Timing) -> Iterator[tuple[int, Region | None]]:
    """Yield the number of each window, in any order, and a region that contains it, or None if it is empty."""
    with _scratch_memory() as scratch:
        batches, alone, records = list[JpegBatch](), list(range(len(rows))), list[memoryview]()
        if images.indexed:
            started = perf_counter()
            records = [images.get(row) for row in rows.tolist()]
            read = perf_counter()
            heights, widths = (sides.tolist() for sides in images.sides(rows))
            batches, alone = jpeg_batches(records, list(zip(heights, widths, strict=True)), windows)
            timing.read_s += read - started
            timing.decode_s += perf_counter() - read
        for batch in batches:
            started = perf_counter()
            joined = join_cells(batch.cells)  # waits for the disk
            read = perf_counter()
            try:
                regions = batch.decode(joined, gray=images.form.channels == 1, scratch=scratch)
            except CodecError:  # one of them is damaged: decoding each alone tells which
                regions = []
                alone += batch.positions
            timing.read_s += read - started
            timing.decode_s += perf_counter() - read
            yield from regions
        for k in alone:
            row, window = int(rows[k]), windows[k]
            started = perf_counter()
            data = records[k] if records else images.get(row)
            bytes(data[:: mmap.PAGESIZE])  # touching each page waits for the disk here, so that it counts as reading
            read = perf_counter()
            region = None if window.empty else images.decode(row, data, window, scratch)
            timing.read_s += read - started
            timing.decode_s += perf_counter() - read
            yield k, region


class _Scratch:
    """Flat memory that grows. A fresh array for each image would cost more in page faults than another core gains."""

    memory: Array = np.empty(0, np.uint8)

    def __call__(self, size: int) -> Array:
        if self.memory.size < size:
            self.memory = decode_buffer(max(size, MIN_SCRATCH_BYTES))
        return self.memory


@contextmanager
def _scratch_memory() -> Iterator[_Scratch]:
    """Lend this thread's memory; nested users, such as a transform that reads other samples, get their own."""
    memory = getattr(_local, "memory", None) or _Scratch()
    _local.memory = None
    try:
        yield memory
    finally:
        _local.memory = memory


def _stack(samples: Sequence[Array], allocate: Allocate) -> Array:
    """Stack samples of one shape to a batch [n, H, W, C]."""
    shapes = {sample.shape for sample in samples}
    if len(shapes) > 1:
        raise LoaderError(f"transform returned arrays of different shapes, {shorten(shapes)}: a batch needs one")
    return np.stack(samples, out=allocate((len(samples), *samples[0].shape), np.result_type(*samples)))


class EncodedBatch(NamedTuple):
    """A batch before decoding, for decoders that take whole batches of JPEGs."""

    plan: Sequence[Sample]
    jpegs: list[memoryview]
    targets: Any  # as `read_batch` returns them
    shape: tuple[int, ...]  # [H, W, C] of each sample
