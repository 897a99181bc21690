"""How a stored image becomes a sample: the boxes and flips of crops, resizing, and the user's transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.codecs.jpeg_crop import Region, Window
from fastdata.data.transforms import UserTransform
from fastdata.errors import LoaderError
from fastdata.images.crops import Crop
from fastdata.images.resample import resample, resample_part
from fastdata.types import Array

Shape = tuple[int, int]
Transform = Callable[..., Any]

FLIP_DRAWS = 2
SHRINK = {8: 8, 4: 4, 2: 2}  # least ratio of box to output: pixels per side that the decoder may merge into one
AROUND = 3  # pixels of the larger of image and output around a box that may count: those of a bicubic kernel, and one to round
SHRINK_ANTIALIASED = {12: 4, 4: 2}  # leaves enough to average: within 2 codes of Pillow for the worst photo (benchmarks/LOG.md)


class Sample(NamedTuple):
    """The plan for one image: box, what to decode for it, (height, width) of the output, (horizontal, vertical) flip."""

    box: tuple[float, float, float, float]
    window: Window
    shape: Shape
    flip: tuple[bool, bool]


@dataclass(frozen=True, repr=False)
class View:
    """How an image becomes a sample, or one of several views in a sample: `crop=[View(...), View(...)]` of a dataset.

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
        """Return the view, with `hflip`, `vflip` and `transform` where it has none of its own."""
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
        """Return the pixels of the largest output. `sides` returns all heights and widths; it is called only if they matter."""
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
        """Write a sample's mask, [H, W], from the whole image's [h, w]. Each pixel takes the class at its centre."""
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
        """Return the shape of a batch's outputs, or raise a LoaderError if there are several."""
        shapes = {sample.shape for sample in plan}
        if len(shapes) == 1:
            return plan[0].shape
        if self.crop is None:
            what = "give the dataset a crop, such as crop=fastdata.RandomResizedCrop(224), or prepare with --resize crop"
        else:
            what = f"{self.crop} keeps the aspect ratio; use Resize((height, width)) or CenterCrop"
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
        raise LoaderError(f"{crop}.boxes gave {boxes.dtype} {list(boxes.shape)}, but must give integers {[len(heights), 4]}")
    top, left, height, width = boxes.T
    faults = {"has no pixels": (height < 1) | (width < 1)}
    if not crop.reaches_outside:
        outside = (top < 0) | (left < 0) | (top + height > heights) | (left + width > widths)
        faults["reaches beyond the image, but reaches_outside is False"] = outside
    if not crop.resizes and crop.shape is not None:
        faults["does not have the size of the output, but resizes is False"] = (boxes[:, 2:] != crop.shape).any(axis=1)
    for fault, where in faults.items():
        if where.any():
            k = int(where.argmax())
            of = f"{boxes[k].tolist()} (top, left, height, width) for an image of {heights[k]} x {widths[k]}"
            raise LoaderError(f"{crop}.boxes gave {of}, which {fault}")
    return boxes


def shorten(found: set[Any]) -> str:
    """Join the first few items of a set, for a message."""
    return ", ".join(map(str, sorted(found)[:4])) + (", ..." if len(found) > 4 else "")
