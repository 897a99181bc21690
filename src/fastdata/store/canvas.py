"""An image to draw text, boxes, lines and pictures on, for contact sheets."""

from __future__ import annotations

import bisect
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.errors import StoreError

__all__ = ["BLUE", "DARK", "GAP", "GREY", "LIGHT", "ORANGE", "PALE", "TITLE", "Canvas", "class_colors", "text_width"]

Array = np.ndarray[Any, np.dtype[Any]]
Color = tuple[int, int, int]

DARK, GREY, LIGHT, PALE = (32, 32, 32), (112, 112, 112), (205, 205, 205), (244, 244, 244)
BLUE, ORANGE = (66, 112, 180), (222, 124, 40)
OUTSIDE = (236, 236, 236)  # the colour of the class that means "ignore"
GAP, TITLE = 8, 56  # pixels: the margin, and the height of the title
HERSHEY = 1 / 31  # the scale of OpenCV 4's built-in font per pixel of size


class Canvas:
    """RGB pixels on white. Positions are (x, y) from the upper left corner, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels: Array = np.full((height, width, 3), 255, np.uint8)

    def box(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        self.pixels[y : y + height, x : x + width] = color

    def text(self, x: int, y: int, text: str, *, width: int, size: int = 13, color: Color = DARK, bold: bool = False) -> int:
        """Write one line on the baseline `y`, shortened with dots to `width`, and return its width."""
        short = text = _printable(text)
        if text_width(text, size, bold) > width:
            lengths = range(1, len(text) + 1)
            fits = bisect.bisect_right(lengths, width, key=lambda length: text_width(text[:length] + "..", size, bold))
            short = text[:fits] + ".."
        if hasattr(cv2, "FontFace"):
            cv2.putText(self.pixels, short, (x, y), color, _font(), size, _weight(bold))
        else:
            cv2.putText(self.pixels, short, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size * HERSHEY, color, 1 + bold, cv2.LINE_AA)
        return text_width(short, size, bold)

    def picture(self, x: int, y: int, width: int, height: int, pixels: Array, *, smooth: bool = True) -> None:
        """Fit RGB pixels [H, W, 3] into a box, centred. Enlarge without smoothing, so that single pixels show.

        smooth: average when reducing; False for classes.
        """
        scale = min(width / pixels.shape[1], height / pixels.shape[0])
        tall, wide = (max(1, round(n * scale)) for n in pixels.shape[:2])
        how = cv2.INTER_AREA if scale < 1 and smooth else cv2.INTER_NEAREST
        top, left = y + (height - tall) // 2, x + (width - wide) // 2
        self.pixels[top : top + tall, left : left + wide] = cv2.resize(
            np.ascontiguousarray(pixels), (wide, tall), interpolation=how
        )

    def line(self, points: Array, color: Color) -> None:
        """Connect points, [n, 2] of (x, y)."""
        cv2.polylines(self.pixels, [np.round(points).astype(np.int32).reshape(-1, 1, 2)], False, color, 1, cv2.LINE_AA)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a PNG."""
        ok, data = cv2.imencode(".png", cv2.cvtColor(self.pixels, cv2.COLOR_RGB2BGR))
        if not ok:
            raise StoreError(f"OpenCV could not encode the sheet for {os.fspath(path)}")
        Path(path).write_bytes(data.tobytes())


def text_width(text: str, size: int = 13, bold: bool = False) -> int:
    """Return the width of a line in pixels."""
    if hasattr(cv2, "FontFace"):
        return int(cv2.getTextSize((0, 0), text, (0, 0), _font(), size, _weight(bold))[2])
    return int(cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size * HERSHEY, 1 + bold)[0][0])


@cache
def _font() -> Any:
    return cv2.FontFace("sans")


def _weight(bold: bool) -> int:
    return 600 if bold else 400


def _printable(text: str) -> str:
    """Replace what the font cannot draw: undecodable bytes of names, and beyond ASCII in OpenCV 4, become question marks."""
    code = "utf-8" if hasattr(cv2, "FontFace") else "ascii"
    plain = text.encode(code, "replace").decode(code)
    return "".join(letter if letter.isprintable() else " " for letter in plain)


@cache
def class_colors(count: int) -> Array:
    """Return distinct colours for class numbers, uint8 [count, 3]. Class 0 is dark grey; 255 and 65535 are pale."""
    turn = np.arange(count) * ((math.sqrt(5) - 1) / 2) % 1
    hsv = np.stack([turn * 180, np.where(np.arange(count) % 3 == 2, 130, 200), np.where(np.arange(count) % 2, 230, 170)], axis=-1)
    colors: Array = cv2.cvtColor(hsv.astype(np.uint8)[None], cv2.COLOR_HSV2RGB)[0]
    colors[0] = 64
    for ignored in (255, 65_535):
        if ignored < count:
            colors[ignored] = OUTSIDE
    return colors
