"""From stored images to samples: boxes and flips of crops, reading, decoding, resizing, and the user's transform."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.codecs.jpeg_crop import JpegBatch, Region, Window, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.data.dataset import Allocate, Timing
from fastdata.data.transforms import UserTransform
from fastdata.errors import CodecError, LoaderError
from fastdata.images.crops import Crop
from fastdata.images.records import Images
from fastdata.images.resample import resample, resample_part
from fastdata.types import Array

Shape = tuple[int, int]
Transform = Callable[..., Any]

FLIP_DRAWS = 2
SHRINK = {8: 8, 4: 4, 2: 2}  # least ratio of box to output: pixels per side that the decoder may merge into one
AROUND = 3  # pixels of the larger of image and output around a box that may count: those of a bicubic kernel, and one to round
SHRINK_ANTIALIASED = {12: 4, 4: 2}  # leaves enough to average: within 2 codes of Pillow for the worst photo (benchmarks/LOG.md)
MIN_SCRATCH_BYTES = 1 << 21  # of scratch memory: holds the largest batch of JPEGs
# A window joins a part if decoding the part with it costs less than decoding it alone: see benchmarks/LOG.md, "Views".
START = 16_000  # pixels that could be decoded in the time that each decode takes to start

_local = threading.local()


class Sample(NamedTuple):
    """The plan for one image: box, what to decode for it, (height, width) of the output, (horizontal, vertical) flip."""

    box: tuple[float, float, float, float]
    window: Window
    shape: Shape
    flip: tuple[bool, bool]


@dataclass(frozen=True, repr=False)
class View:
    """The crop, flips and transform of a sample, or of one of its several views: `crop=[View(...), View(...)]` of a dataset.

    Args:
        crop: the box that is emitted, or None for the whole image.
        hflip, vflip: probabilities of flips, or None for those of the dataset.
        transform: your own function for this view, as for LMDBDataset, or None for that of the dataset.
    """

    crop: Crop | None = None
    _: KW_ONLY
    hflip: float | None = None
    vflip: float | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        for name in ("hflip", "vflip"):
            if (chance := getattr(self, name)) is not None and not 0 <= chance <= 1:
                raise ValueError(f"{name} is {chance}, but a probability lies between 0 and 1")
        if self.crop is not None:
            if not isinstance(self.crop, Crop):
                raise TypeError(f"crop is {self.crop!r}, but must be a fastdata.Crop, such as RandomResizedCrop(224), or None")
            self.crop.sides(2)
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"transform is {self.transform!r}, but must be a function or another callable")

    __repr__ = Crop.__repr__

    def filled(self, **defaults: Any) -> View:
        """Return the view, with these `hflip`, `vflip` and `transform` where it has none."""
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    @cached_property
    def user(self) -> UserTransform | None:
        """The wrapped transform."""
        return None if self.transform is None else UserTransform(self.transform)

    @property
    def draws(self) -> int:
        return FLIP_DRAWS + (self.crop.draws if self.crop else 0)

    def plan(self, u: Array, heights: Array, widths: Array) -> list[Sample]:
        """Plan the samples of a batch from uniform numbers [draws, n] and the images' sides, int64 [n]."""
        if self.crop is None:
            boxes = np.stack([np.zeros_like(heights), np.zeros_like(widths), heights, widths], axis=1)
        else:
            boxes = _check_boxes(self.crop, self.crop.boxes(u[FLIP_DRAWS:], heights, widths), heights, widths)
        flips = np.stack([u[0] < self.hflip, u[1] < self.vflip], axis=1)
        shapes = self.crop.shapes(boxes) if self.crop else list(map(tuple, boxes[:, 2:].tolist()))
        one_shape = self.crop is not None and self.crop.shape is not None
        windows = self._windows(boxes, np.array(shapes[:1] if one_shape else shapes), heights, widths)
        return list(map(Sample, zip(*boxes.T.tolist(), strict=True), windows, shapes, zip(*flips.T.tolist(), strict=True)))

    def most_pixels(self, sides: Callable[[], tuple[Array, Array]]) -> int:
        """Return the pixels of the largest output. `sides` returns all heights and widths, and is called only if they matter."""
        crop = self.crop
        if crop is not None and crop.shape is not None:
            return math.prod(crop.shape)
        heights, widths = sides()
        if crop is None:
            return int((heights * widths).max())
        heights, widths = np.unique([heights, widths], axis=1)
        boxes = crop.boxes(np.zeros((crop.draws, len(heights))), heights, widths)
        return max(map(math.prod, crop.shapes(boxes)))

    def _windows(self, boxes: Array, shapes: Array, heights: Array, widths: Array) -> list[Window]:
        """Clip the boxes to the images, and choose the decoders' scales. `shapes`: one for each output, or one for all."""
        starts, ends = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
        if self.crop and self.crop.resizes_first:
            around = AROUND * np.maximum(boxes[:, 2:] / shapes, 1)
            starts, ends = np.floor(starts - around), np.ceil(ends + around)
        starts, ends = np.maximum(starts, 0), np.minimum(ends, np.array([heights, widths]).T)
        antialias, fast = (self.crop.antialias, self.crop.fast) if self.crop else (False, False)
        factor = (boxes[:, 2:] / shapes).min(axis=1)
        shrink = np.ones((len(boxes), 1), np.int64)
        for least, scale in reversed((SHRINK_ANTIALIASED if antialias else SHRINK).items()):
            shrink[factor >= least] = scale
        rows = np.concatenate([starts, ends - starts, shrink], axis=1).astype(np.int64).tolist()
        return [Window(y, x, h, w, scale, fast) for y, x, h, w, scale in rows]

    def render(self, sample: Sample, region: Region | None, out: Array) -> None:
        """Write a sample, [H, W, C], without the transform. `region` contains its window, or is None if the window is empty."""
        crop = self.crop
        antialias, interpolation, fill = (crop.antialias, crop.interpolation, crop.fill) if crop else (False, "bilinear", 0)
        if region is None:
            out[...] = fill
        elif sample.window[:4] == sample.box:
            (top, left, h, w), shrink = sample.box, region.shrink
            box = ((top - region.top) / shrink, (left - region.left) / shrink, h / shrink, w / shrink)
            resample(region.pixels, box, out, antialias=antialias, interpolation=interpolation)
        else:
            target, start, rate = _inside(sample, out, fill)
            corner = region.top // region.shrink, region.left // region.shrink
            rate = rate[0] / region.shrink, rate[1] / region.shrink
            resample_part(region.pixels, corner, rate, start, target, interpolation=interpolation)
        _flip(out, sample.flip)

    def render_mask(self, sample: Sample, mask: Array, out: Array, outside: int) -> None:
        """Write a sample's mask, [H, W], from the whole mask, [h, w]. Each pixel takes the class at its centre."""
        top, left, h, w = sample.window[:4]
        if sample.window.empty:
            out[...] = outside
        elif sample.window[:4] != sample.box:
            target, start, rate = _inside(sample, out, outside)
            rows, columns = map(_nearest, start, target.shape, rate, mask.shape)
            target[...] = mask[rows][:, columns]
        elif out.shape == (h, w):
            out[...] = mask[top : top + h, left : left + w]
        else:
            cv2.resize(mask[top : top + h, left : left + w], out.shape[::-1], dst=out, interpolation=cv2.INTER_NEAREST_EXACT)
        _flip(out, sample.flip)

    def one_shape(self, plan: Sequence[Sample]) -> Shape:
        """Return the shape of a batch's outputs, or raise a LoaderError if they have several shapes."""
        shapes = {sample.shape for sample in plan}
        if len(shapes) == 1:
            return plan[0].shape
        if self.crop is None:
            what = "give the dataset crop=fastdata.RandomResizedCrop(224), or prepare with --size 224 --resize crop"
        else:
            what = f"{self.crop} does not fix the size; use Resize((height, width)) or CenterCrop"
        raise LoaderError(f"a batch needs images of one size, but these have {shorten({f'{w} x {h}' for h, w in shapes})}: {what}")


AnyCrop = Crop | View | Sequence[Crop | View] | None  # the argument `crop` of datasets


def _inside(sample: Sample, out: Array, outside: int) -> tuple[Array, list[int], tuple[float, float]]:
    """Fill an output with `outside` where its box reaches beyond the image. Return the rest of the output, where this begins in
    the resized image, and how many pixels of the image each new one spans, down and across.
    """
    out[...] = outside
    (top, left, height, width), window = sample.box, sample.window
    rate = height / out.shape[0], width / out.shape[1]
    y, x = round(top / rate[0]), round(left / rate[1])
    bottom, right = round((window.top + window.height) / rate[0]), round((window.left + window.width) / rate[1])
    return out[max(-y, 0) : max(bottom - y, 0), max(-x, 0) : max(right - x, 0)], [max(y, 0), max(x, 0)], rate


def _nearest(start: int, count: int, rate: float, side: int) -> Any:
    """Return the old pixels at the centres of `count` new ones from `start` on, each of which spans `rate` old ones."""
    if rate == 1:
        return slice(start, start + count)
    return np.minimum((start + np.arange(count) + 0.5) * rate, side - 1).astype(np.int64)


def _flip(out: Array, flip: tuple[bool, bool]) -> None:
    if any(flip):
        cv2.flip(out, -1 if all(flip) else int(flip[0]), dst=out)


def plan_views(views: Sequence[View], u: Array, heights: Array, widths: Array) -> list[list[Sample]]:
    """Plan the samples of a batch, for each view. Each view has its own random numbers, [draws, n]; see `View.plan`."""
    starts = np.cumsum([view.draws for view in views])[:-1]
    return [view.plan(own, heights, widths) for view, own in zip(views, np.split(u, starts), strict=True)]


def _check_boxes(crop: Crop, boxes: Array, heights: Array, widths: Array) -> Array:
    """Return the boxes, or raise a LoaderError if they contradict what the crop declares."""
    if boxes.shape != (len(heights), 4) or boxes.dtype.kind not in ("iuf" if crop.resizes_first else "iu"):
        raise LoaderError(f"{crop}.boxes gave {boxes.dtype} {list(boxes.shape)}, not integers of shape {[len(heights), 4]}")
    top, left, height, width = boxes.T
    wrong = (height < 1) | (width < 1)
    if not crop.reaches_outside:
        wrong |= (top < 0) | (left < 0) | (top + height > heights) | (left + width > widths)
    if not crop.resizes and crop.shape is not None:
        wrong |= (boxes[:, 2:] != crop.shape).any(axis=1)
    if wrong.any():
        k = int(wrong.argmax())
        of = f"{boxes[k].tolist()} (top, left, height, width) for an image of {heights[k]} x {widths[k]}"
        rules = "have an area, lie in the image unless reaches_outside is True, and have the output's size unless resizes is True"
        raise LoaderError(f"{crop}.boxes gave {of}, but a box must {rules}")
    return boxes


def shorten(found: set[Any]) -> str:
    """Join the first few items of a set, for a message."""
    return ", ".join(map(str, sorted(found)[:4])) + (", ..." if len(found) > 4 else "")


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
    """Join windows of one image at one scale, the largest first, where that saves time. If `cuts` is False, images are decoded
    whole, and all windows of one scale are joined. Return each window with the views that lie in it."""
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
    """Yield each window's number, in any order, and a region that contains it, or None for an empty window."""
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
    """Flat memory that grows. New arrays for each image would cost more in page faults than another core gains."""

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
        raise LoaderError(f"transform returned arrays of different shapes, {shorten(shapes)}: a batch needs one shape")
    return np.stack(samples, out=allocate((len(samples), *samples[0].shape), np.result_type(*samples)))


class EncodedBatch(NamedTuple):
    """A batch before decoding, for decoders that take whole batches of JPEGs."""

    plan: Sequence[Sample]
    jpegs: list[memoryview]
    targets: Any  # as `read_batch` returns them
    shape: tuple[int, ...]  # [H, W, C] of each sample
