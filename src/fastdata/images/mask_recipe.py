"""How masks of a segmentation data set are prepared: bits, palette and resizing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fastdata.errors import PrepError
from fastdata.images.mask_file import Color
from fastdata.sources.urls import to_path

__all__ = ["MaskRecipe", "read_palette", "resize_mask"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class MaskRecipe:
    """How mask files are read.

    Attributes:
        bits: bits of a class, 8 or 16.
        colors: the colour of each class, if files have colours.
        names: the name of each class.
        binary: whether all masks have two classes, which files may write as 0 and 255.
    """

    bits: int = 8
    colors: tuple[Color, ...] = ()
    names: tuple[str, ...] = ()
    binary: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise ValueError(f"--mask-bits is {self.bits}, but must be 8 or 16")
        if len(self.colors) > 1 << self.bits:
            raise ValueError(
                f"the palette has {len(self.colors)} colours, {self.bits} bits hold {1 << self.bits}: give --mask-bits 16"
            )


def read_palette(path: str | os.PathLike[str]) -> tuple[tuple[Color, ...], tuple[str, ...]]:
    """Read the colours and names of classes 0, 1, 2 and so on from a text file.

    Each line has red, green, blue and a name, before or after them, separated by commas, tabs or spaces. A first line without
    numbers is a header.

    Raises:
        PrepError: if the file cannot be read, a line is malformed, or a colour appears twice.
    """
    try:
        lines = to_path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrepError(f"cannot read the palette {path}: {error}") from error
    colors, names = list[Color](), list[str]()
    for number, line in enumerate(lines, 1):
        found = re.fullmatch(r"(?P<before>.*?)\b(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})(?P<after>(?:[\s,;].*)?)", line.strip())
        if found is None:
            if line.strip() and (number > 1 or re.search(r"\d", line)):
                raise PrepError(f"{path}, line {number}: {line.strip()!r:.80} is not red, green, blue (0 to 255) and a name")
            continue
        if re.search(r"\b\d+\b", f"{found['before']} {found['after']}"):
            raise PrepError(
                f"{path}, line {number}: {line.strip()!r:.80} has more than three numbers, expected red, green, blue and a name"
            )
        red, green, blue = (int(found[k]) for k in (2, 3, 4))
        if max(red, green, blue) > 255:
            raise PrepError(f"{path}, line {number}: colours are from 0 to 255")
        if (red, green, blue) in colors:
            raise PrepError(f"{path}, line {number}: repeats the colour of line {colors.index((red, green, blue)) + 1}")
        colors.append((red, green, blue))
        names.append(f"{found['before']} {found['after']}".strip(" \t,;") or str(len(names)))
    if not colors:
        raise PrepError(f"the palette {path} has no line of red, green, blue and a name")
    return tuple(colors), tuple(names)


def resize_mask(mask: Array, shape: tuple[int, int]) -> Array:
    """Resize a mask: each new pixel takes the class at its centre, since classes cannot be averaged."""
    return mask if mask.shape == shape else cv2.resize(mask, shape[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
