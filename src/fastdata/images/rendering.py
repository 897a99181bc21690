"""Make samples from stored images: read, decode, crop, resize, flip, transform."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from fastdata.data.timing import Allocate, Timing
from fastdata.errors import CodecError, LoaderError
from fastdata.images.batch_decode import JpegBatch, jpeg_batches
from fastdata.images.form import PixelFormat
from fastdata.images.jpeg import decode_buffer
from fastdata.images.pixels import Region, Window
from fastdata.images.planes import BLACK, planes_to_rgb, split_planes
from fastdata.images.records import Images
from fastdata.images.sharing import shared_parts
from fastdata.images.view import Sample, View, Views, shorten

__all__ = ["render_batch", "render_each", "render_masks", "stack"]

Array = np.ndarray[Any, np.dtype[Any]]

Regions = Mapping[int, Region]
LEAST_BYTES = 1 << 21  # of scratch memory: holds the largest batch of JPEGs
_local = threading.local()


def render_batch(
    images: Images,
    views: Sequence[View],
    rows: Array,
    plans: Sequence[Sequence[Sample]],
    allocate: Allocate,
    timing: Timing | None = None,
    *,
    rgb: bool = False,
) -> list[Array]:
    """Return samples without a transform, for each view, [n, H, W, C] or planes [n, H * 3/2, W, 1].

    Args:
        plans: for each view, an entry for each row.
        rgb: whether planes become RGB.
    """
    form = images.form
    outs, rendered = list[Array](), list[Array]()
    for view, plan in zip(views, plans, strict=True):
        shapes = {sample.shape for sample in plan}
        if len(shapes) > 1:
            raise view.unequal(shapes)
        shape, emitted = _shape(form, plan[0]), form.emitted(rgb=rgb)
        outs.append(allocate((len(rows), *emitted.shape(*plan[0].shape)), np.dtype(form.dtype)))
        rendered.append(outs[-1] if emitted == form else np.empty((len(rows), *shape), form.dtype))
    timing = timing or Timing()
    for v, k, regions in _decoded(images, rows, plans, timing):
        _render(form, views[v], plans[v][k], regions, rendered[v][k], timing)
    started = perf_counter()
    for out, pixels, plan in zip(outs, rendered, plans, strict=True):
        for k, sample in enumerate(plan if out is not pixels else ()):
            out[k] = planes_to_rgb(split_planes(pixels[k], *sample.shape))
    timing.resize_s += perf_counter() - started
    return outs


def render_masks(
    masks: Images, view: View, rows: Array, plan: Sequence[Sample], outside: int, allocate: Allocate, timing: Timing | None = None
) -> Array:
    """Return the masks, [n, H, W], of the samples that `render_batch` makes. Pixels beyond the image get the class `outside`."""
    out = allocate((len(rows), *plan[0].shape), np.dtype(masks.form.dtype))
    timing = timing or Timing()
    with _scratch_memory() as scratch:
        for row, sample, target in zip(rows.tolist(), plan, out, strict=True):
            started = perf_counter()
            (region,) = masks.decode(row, masks.get(row), sample.window, scratch)
            decoded = perf_counter()
            view.render_mask(sample, region.pixels[:, :, 0], target, outside)
            timing.decode_s += decoded - started
            timing.resize_s += perf_counter() - decoded
    return out


def render_each(
    images: Images,
    views: Views,
    rows: Array,
    plans: Sequence[Sequence[Sample]],
    timing: Timing | None = None,
    before_transform: Callable[[int, int], None] = lambda view, k: None,
) -> list[list[Array]]:
    """Return the transformed samples of each view, [H, W, C] each. They are made in any order.

    Args:
        before_transform: takes the number of the view, and that of the row.
    """
    form = images.form
    timing = timing or Timing()
    samples: list[dict[int, Array]] = [{} for _ in plans]

    def finish(v: int, k: int) -> None:
        pixels = samples[v][k]
        if form.planes and views.rgb:
            pixels = planes_to_rgb(split_planes(pixels, *plans[v][k].shape))
        if views.user is not None:
            before_transform(v, k)
            pixels = views.user(pixels, form.channels)
        samples[v][k] = pixels

    for v, k, regions in _decoded(images, rows, plans, timing):
        sample = plans[v][k]
        _render(form, views.each[v], sample, regions, samples[v].setdefault(k, np.empty(_shape(form, sample), form.dtype)), timing)
        if not form.planes:
            finish(v, k)
    for v, found in enumerate(samples if form.planes else ()):  # their planes may come apart
        for k in found:
            finish(v, k)
    return [[found[k] for k in range(len(rows))] for found in samples]


def _render(form: PixelFormat, view: View, sample: Sample, regions: Regions | None, out: Array, timing: Timing) -> None:
    """Render a sample, or those of its planes that have a region; None: the whole is black."""
    started = perf_counter()
    for k, (plane, black) in enumerate(_planes(form, sample, out)):
        if regions is None or k in regions:
            view.render(sample, None if regions is None else regions[k], plane, black)
    timing.resize_s += perf_counter() - started


def _decoded(
    images: Images, rows: Array, plans: Sequence[Sequence[Sample]], timing: Timing
) -> Iterator[tuple[int, int, Regions | None]]:
    """Yield the view and the place of each sample, and regions that contain its window; None: the window is empty.

    A sample of planes may come once for each plane. Regions are valid until the next item.
    """
    parts = shared_parts(plans, cuts=images.indexed)
    rows = rows[[part.place for part in parts]]
    for number, regions in _regions(images, rows, [part.window for part in parts], timing):
        for view in parts[number].views:
            yield view, parts[number].place, regions


def _regions(images: Images, rows: Array, windows: Sequence[Window], timing: Timing) -> Iterator[tuple[int, Regions | None]]:
    """Yield the number of each window, in any order, and regions that contain it, by plane; None: it is empty."""
    with _scratch_memory() as scratch:
        batches, alone, records = _in_batches(images, rows, windows, timing) if images.indexed else ([], list(range(len(rows))), [])
        for batch in batches:
            started = perf_counter()
            try:
                regions = batch.decode(gray=images.form.planes or images.form.channels == 1, scratch=scratch)
            except CodecError:  # one of them is damaged: decoding each alone tells which
                regions = []
                alone += batch.places
            timing.decode_s += perf_counter() - started
            for k, region in regions:
                yield k, {batch.plane: region}
        for k in alone:
            row, window = int(rows[k]), windows[k]
            started = perf_counter()
            data = records[k] if records else _read(images, row)
            read = perf_counter()
            found = None if window.empty else dict(enumerate(images.decode(row, data, window, scratch)))
            timing.read_s += read - started
            timing.decode_s += perf_counter() - read
            yield k, found


def _in_batches(
    images: Images, rows: Array, windows: Sequence[Window], timing: Timing
) -> tuple[list[JpegBatch], list[int], list[memoryview]]:
    """Return the windows to decode together, those to decode alone, and all records."""
    started = perf_counter()
    records = [_read(images, row) for row in rows.tolist()]
    read = perf_counter()
    heights, widths = (sides.tolist() for sides in images.sides(rows))
    batches, alone = jpeg_batches(records, list(zip(heights, widths, strict=True)), windows, planes=images.form.planes)
    timing.read_s += read - started
    timing.decode_s += perf_counter() - read
    return batches, alone, records


def _read(images: Images, row: int) -> memoryview:
    """Return the stored bytes. Touching each page waits for the disk here, so that it counts as reading."""
    data = images.get(row)
    bytes(data[:: mmap.PAGESIZE])
    return data


def _shape(form: PixelFormat, sample: Sample) -> tuple[int, int, int]:
    if form.planes and (sample.shape[0] % 2 or sample.shape[1] % 2):
        height, width = sample.shape
        raise LoaderError(
            f"{form.codec} needs even sides, but a sample is {width} x {height}: use a crop with even sides, or codec rgb or jpeg"
        )
    return form.shape(*sample.shape)


def _planes(form: PixelFormat, sample: Sample, out: Array) -> Sequence[tuple[Array, int]]:
    """Return the arrays that make up a sample, each with its value for black."""
    return tuple(zip(split_planes(out, *sample.shape), BLACK, strict=True)) if form.planes else ((out, 0),)


class _Scratch:
    """Flat memory that grows. A fresh array for each image would cost more in page faults than another core gains."""

    def __init__(self) -> None:
        self.memory: Array = np.empty(0, np.uint8)

    def __call__(self, size: int) -> Array:
        if self.memory.size < size:
            self.memory = decode_buffer(max(size, LEAST_BYTES))
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


def stack(samples: Sequence[Array], allocate: Allocate) -> Array:
    """Stack samples of one shape to a batch [n, H, W, C]."""
    shapes = {sample.shape for sample in samples}
    if len(shapes) > 1:
        raise LoaderError(f"transform returned arrays of different shapes, {shorten(shapes)}: a batch needs one")
    return np.stack(samples, out=allocate((len(samples), *samples[0].shape), np.result_type(*samples)))
