"""Class masks in files: palette indices, grey values, or colours that a table maps to classes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fastdata.codecs.channels import split_alpha, to_channels
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.png_file import PngHeader
from fastdata.errors import CodecError, PrepError
from fastdata.sources.urls import to_path
from fastdata.store.manifest import Form
from fastdata.types import Array, StrPath

Color = tuple[int, int, int]

HIGHEST = 255, 65_535  # values of 8 and of 16 bits
SMOOTH_LEVELS, SMOOTH_SHARE = 4, 10  # so many different values, less than one in ten of which is equal to its neighbours


@dataclass(frozen=True)
class MaskRecipe:
    """How mask files are read."""

    bits: int = 8  # of a class, 8 or 16
    colors: tuple[Color, ...] = ()  # of the classes, if files have colours
    names: tuple[str, ...] = ()  # of the classes
    binary: bool = False  # whether all masks have two classes: in a file of 0 and the largest value, that is class 1

    @property
    def form(self) -> Form:
        return Form("rgb", 1, f"uint{self.bits}")

    def __post_init__(self) -> None:
        if len(self.colors) > 1 << self.bits:
            raise ValueError(f"the palette has {len(self.colors)} colours, more than {self.bits} bits hold: give --mask-bits 16")


def read_palette(path: StrPath) -> tuple[tuple[Color, ...], tuple[str, ...]]:
    """Read the colours and names of classes 0, 1, 2 and so on from a text file.

    Each line has red, green, blue and a name, in any order, separated by commas, tabs or spaces. A first line without numbers is a
    header.
    """
    try:
        lines = to_path(path).read_bytes().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrepError(f"cannot read the palette {path}: {error}") from error
    found = dict[Color, str]()
    for number, line in enumerate(lines, 1):
        cells = re.findall(r"[^\s,;]+", line)
        numbers = [int(cell) for cell in cells if cell.isascii() and cell.isdigit()]
        if not cells or (number == 1 and not numbers):
            continue
        if len(numbers) != 3 or max(numbers) > 255 or (*numbers,) in found:
            what = f"{path}, line {number}: {line.strip()!r:.80}"
            raise PrepError(f"{what} is not red, green, blue (0 to 255, no colour twice) and a name")
        found[numbers[0], numbers[1], numbers[2]] = " ".join(cell for cell in cells if not cell.isdigit()) or str(len(found))
    if not found:
        raise PrepError(f"the palette {path} has no line of red, green, blue and a name")
    return tuple(found), tuple(found.values())


def decode_mask(data: bytes, recipe: MaskRecipe, max_pixels: int = 1 << 28) -> Array:
    """Return the class of each pixel of a PNG, uint8 or uint16 [H, W]: of its colour in the table, else its grey value or index."""
    if recipe.colors:
        color, _ = split_alpha(_header(data, max_pixels).pixels(data))  # alpha is no class
        values = _class_numbers(to_channels(color, gray=False), recipe.colors)
    else:
        values = mask_values(data, max_pixels)
        if recipe.binary and (high := values.max(initial=0)) in HIGHEST:
            if not is_binary(values):
                what = f"the mask has {high} next to two other values, but {high} is class 1 in masks that have only 0 beside it"
                raise CodecError(f"{what}: write all masks with 0, 1, 2 and so on", "mask-values")
            values = values != 0
    if values.max(initial=0) >> recipe.bits:
        raise CodecError(f"a mask has the value {values.max()}: 8 bits hold 255; give --mask-bits 16", "range")
    return np.ascontiguousarray(values, f"uint{recipe.bits}")


def mask_values(data: bytes, max_pixels: int = 1 << 28) -> Array:
    """Return the numbers in a mask's file, [H, W]. Raise CodecError as `decode_mask` does."""
    values = _header(data, max_pixels).values(data)
    if values.ndim == 3 and (values[..., :3] == values[..., :1]).all():
        values = values[..., 0]  # grey stored as RGB
    if values.ndim != 2:
        raise CodecError("the mask has colours: give the table of their classes with --palette FILE", "colors")
    if _is_smooth(values):
        what = "the mask has smooth edges, whose values between 0 and 255 are no classes: write it without antialiasing"
        raise CodecError(what, "mask-values")
    return values


def _header(data: bytes, max_pixels: int) -> PngHeader:
    header = SourceImage(data, max_pixels=max_pixels).header
    if not isinstance(header, PngHeader):
        raise CodecError(f"a mask must be PNG, this is {header.format}: other formats change values, or their meaning", "not-png")
    if header.orientation != 1:
        raise CodecError("the mask has an EXIF orientation, which a mask may not have", "unsupported")
    return header


def is_binary(values: Array) -> bool:
    """Return whether a mask has no values but 0 and 1, or 0 and the largest value of 8 or 16 bits."""
    high = values.max(initial=0)
    return high in (0, 1, *HIGHEST) and bool(((values == 0) | (values == high)).all())


def _is_smooth(values: Array) -> bool:
    """Return whether a mask is mostly 0 and 255, with thin lines of other values: antialiased edges, or those of a JPEG."""
    inner = (values > 0) & (values < 255)
    count = int(inner.sum())
    if values.max(initial=0) != 255 or values.all() or not 0 < 2 * count <= values.size:
        return False
    flat = inner[:-1, :-1] & (values[:-1, :-1] == values[1:, :-1]) & (values[:-1, :-1] == values[:-1, 1:])
    return len(np.unique(values[inner])) >= SMOOTH_LEVELS and SMOOTH_SHARE * int(flat.sum()) < count


def _class_numbers(rgb: Array, colors: tuple[Color, ...]) -> Array:
    """Return the index of each pixel's colour in the table, [H, W]."""
    codes, table = _code(rgb), _code(np.array(colors))
    order = np.argsort(table).astype(np.min_scalar_type(len(colors) - 1))
    classes = order[np.searchsorted(table[order], codes).clip(max=len(order) - 1)]
    unknown = table[classes] != codes
    if unknown.any():
        first = tuple(rgb[unknown][0].tolist())
        raise CodecError(f"{unknown.sum()} pixels have colours that the palette lacks, such as {first}", "unknown-color")
    return np.asarray(classes)


def _code(rgb: Array) -> Array:
    """Return a number for each colour, of 8 or 16 bits per channel."""
    return np.asarray(rgb.astype(np.int64) @ [1 << 32, 1 << 16, 1])
