"""View: how a stored image becomes a sample. The boxes, flips and pixels of crops, and a transform of the user's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fastdata.data.crops import Crop
from fastdata.errors import LoaderError

__all__ = ["View", "scratch", "some"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int]
Transform = Callable[[Array], Array]

FLIP_DRAWS = 2

_local = threading.local()
_NONE: Array = np.empty(0, np.uint8)


def scratch(size: int) -> Array:
    """Flat memory of this thread, kept: a fresh array for each image would cost more in page faults than a core brings in."""
    memory: Array = getattr(_local, "memory", _NONE)
    if memory.size < size:
        memory = _local.memory = np.empty(max(size, 1 << 20), np.uint8)
    return memory


@dataclass(frozen=True)
class View:
    """A crop (None: the whole image), the probabilities of flips, and a function from array [H, W, C] to array.

    Raises:
        ValueError, TypeError: a wrong argument.
    """

    crop: Crop | None = None
    hflip: float = 0.0
    vflip: float = 0.0
    transform: Transform | None = None

    def __post_init__(self) -> None:
        for name, value in (("hflip", self.hflip), ("vflip", self.vflip)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, but a probability lies between 0 and 1")
        if self.crop is not None and not isinstance(self.crop, Crop):
            raise TypeError(f"crop is {self.crop!r}, but must be RandomResizedCrop, CenterCrop, RandomCrop, Resize or None")

    @property
    def draws(self) -> int:
        """Random numbers a sample needs."""
        return FLIP_DRAWS + (self.crop.draws if self.crop else 0)

    def plan(self, u: Array, heights: Array, widths: Array) -> tuple[list[list[int]], list[Shape], list[tuple[bool, bool]]]:
        """Box, output (height, width) and flips (horizontal, vertical) of each image, from uniform numbers [draws, n]."""
        flips = list(zip((u[0] < self.hflip).tolist(), (u[1] < self.vflip).tolist(), strict=True))
        if self.crop is None:
            whole = list(zip(heights.tolist(), widths.tolist(), strict=True))
            return [[0, 0, h, w] for h, w in whole], whole, flips
        boxes = self.crop.boxes(u[FLIP_DRAWS:], heights, widths)
        return boxes.tolist(), self.crop.shapes(boxes), flips

    def render(self, pixels: Array, box: list[int], flip: tuple[bool, bool], out: Array) -> None:
        """Write one sample, [H, W, C], before the transform."""
        top, left, h, w = box
        if out.shape[:2] != (h, w):
            shrinks = out.shape[0] <= h and out.shape[1] <= w
            how = cv2.INTER_AREA if shrinks and self.crop is not None and self.crop.antialias else cv2.INTER_LINEAR
            cv2.resize(pixels[top : top + h, left : left + w], out.shape[1::-1], dst=out, interpolation=how)
        elif top < 0 or left < 0 or top + h > pixels.shape[0] or left + w > pixels.shape[1]:
            out[...] = 0
            y0, y1 = (min(max(y, 0), pixels.shape[0]) for y in (top, top + h))  # the box may miss the image altogether
            x0, x1 = (min(max(x, 0), pixels.shape[1]) for x in (left, left + w))
            out[y0 - top : y1 - top, x0 - left : x1 - left] = pixels[y0:y1, x0:x1]
        else:
            out[...] = pixels[top : top + h, left : left + w]
        if any(flip):
            cv2.flip(out, -1 if all(flip) else int(flip[0]), dst=out)

    def unequal(self, shapes: list[Shape]) -> LoaderError:
        """What to say when outputs of these shapes are to be one batch."""
        if self.crop is None:
            what = "give the dataset a crop, such as crop=fastdata.RandomResizedCrop(224), or prepare with --resize crop"
        else:
            what = f"{self.crop} keeps the aspect; use Resize((height, width)) or CenterCrop"
        return LoaderError(f"a batch needs images of one size, but these have {some({f'{w} x {h}' for h, w in shapes})}: {what}")


def some(found: set[Any]) -> str:
    """The first few of a set, for a message."""
    return ", ".join(map(str, sorted(found)[:4])) + (", ..." if len(found) > 4 else "")
