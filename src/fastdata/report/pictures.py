"""Pictures inside a page: as data, with boxes and masks above them, in a gallery."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fastdata.errors import StoreError
from fastdata.report.html import Child, Html, tag

__all__ = ["SIDE", "Picture", "gallery", "sample", "shrink", "switches"]

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 288  # pixels of the longer side of a picture
TINY = 64  # pixels: smaller pictures are shown pixel by pixel
QUALITY = 78


@dataclass(frozen=True)
class Picture:
    """A picture of a sample.

    Attributes:
        pixels: uint8 RGB [H, W, 3].
        alt: what it shows, for readers who do not see it.
        mask: None, or RGBA [H, W, 4] to lay over it.
        shapes: elements of SVG to draw over it, in pixels of `size`.
        size: (height, width) of the coordinates of the shapes.
    """

    pixels: Array
    alt: str
    mask: Array | None = None
    shapes: Sequence[Html] = ()
    size: tuple[int, int] = (1, 1)

    def html(self) -> Html:
        height, width = self.size
        small = shrink(self.pixels)
        tiny = max(small.shape[:2]) <= TINY
        source = _data(small, ".png" if tiny else ".jpg")
        sides = {"width": small.shape[1], "height": small.shape[0]}
        image = tag("img", src=source, alt=self.alt, loading="lazy", class_="tiny" if tiny else None, **sides)
        mask = None
        if self.mask is not None:
            mask = tag("img", src=_data(shrink(self.mask, smooth=False), ".png"), alt="", class_="mask")
        shapes = tag("svg", self.shapes, viewBox=f"0 0 {width} {height}", aria_hidden="true") if self.shapes else None
        return tag("span", image, mask, shapes, class_="pic", style=f"flex:{100 * self.ratio:.0f} 1 0")

    @property
    def ratio(self) -> float:
        """Width divided by height."""
        return float(self.pixels.shape[1] / self.pixels.shape[0])


def shrink(pixels: Array, side: int = SIDE, *, smooth: bool = True) -> Array:
    """Return pixels [H, W, ...] whose longer side is at most `side`. smooth: average; False for classes."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    how = cv2.INTER_AREA if smooth else cv2.INTER_NEAREST
    small = cv2.resize(
        np.ascontiguousarray(pixels), (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=how
    )
    return np.asarray(small)


def sample(pictures: Sequence[Picture | str], name: str, note: str, more: Child = None) -> Html:
    """Return a sample of a gallery, which opens when it is pressed.

    Args:
        pictures: side by side; a text says why there is none.
        name: the line below.
        note: the line below that.
        more: what is shown when it is open.
    """
    ratio = sum(1.5 if isinstance(one, str) else min(3.0, max(0.4, one.ratio)) for one in pictures)
    drawn = [tag("span", one, class_="pic broken") if isinstance(one, str) else one.html() for one in pictures]
    parts = [tag("span", drawn, class_="pics"), tag("span", name, class_="name") if name else None]
    parts += [tag("span", note, class_="note"), tag("span", more, class_="more") if more is not None else None]
    return tag("button", parts, type="button", class_="sample", data_text=name, style=f"--ratio:{ratio:.3f}")


def gallery(samples: Sequence[Html], *, strip: bool = False) -> Html:
    """Return samples next to and below each other. strip: in one row, if the page is wide."""
    return tag("div", samples, class_="gallery strip" if strip else "gallery")


def switches(*, masks: bool, boxes: bool) -> list[Html]:
    """Return the switches of what is drawn over pictures."""
    found = []
    for name, on in (("masks", masks), ("boxes", boxes)):
        if on:
            box = tag("input", type="checkbox", id=f"show-{name}", checked=True)
            found.append(tag("label", box, name.capitalize(), class_="switch"))
    return found


def _data(pixels: Array, ending: str) -> str:
    """Return pixels, RGB or RGBA, as the address of an image."""
    order = cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR
    options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1] if ending == ".jpg" else []
    ok, data = cv2.imencode(ending, cv2.cvtColor(np.ascontiguousarray(pixels), order), options)
    if not ok:
        raise StoreError(f"OpenCV could not encode a picture of {pixels.shape} for the report")
    return f"data:image/{'jpeg' if ending == '.jpg' else 'png'};base64,{base64.b64encode(data.tobytes()).decode()}"
