"""Turn the files of a sample, images and a mask, into records of every size. Pure: it decides what a shard contains."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import cv2
import numpy as np

from fastdata.codecs.channels import split_alpha, to_channels
from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_file import JpegHeader
from fastdata.codecs.pillow_files import EXTRAS
from fastdata.codecs.pixels import JPEGS, encode_record
from fastdata.codecs.png_file import PngHeader
from fastdata.errors import CodecError, PrepError
from fastdata.images.geometry import layout
from fastdata.images.sections import NamedImage
from fastdata.sources.urls import to_path
from fastdata.store.manifest import IMAGE, MASK, Form
from fastdata.system.machine import installed_versions
from fastdata.types import Array, StrPath

Shape = tuple[int, int]
Frame = list[Shape]  # the shape that an image is resized to, and the corner and the shape of what is stored: see `layout`
Room = Callable[[int], AbstractContextManager[Any]]  # makes sure of so many bytes of memory
Color = tuple[int, int, int]
MAX_BLUR_RATIO = 1.32  # ratio up to which a slight blur is as exact as two samples, and cheaper
SPREAD = 14.0  # of the blur: least squares over photos, for ratios from 1.05 to 1.3
OTHERS_BYTES = 48  # the most for a pixel of a mask or a further image while it is decoded
HIGHEST = 255, 65_535  # values of masks of 8 and of 16 bits
SMOOTH_LEVELS, SMOOTH_SHARE = 4, 10  # values of an antialiased mask, of which less than one in ten equals its neighbours


@dataclass(frozen=True)
class MaskRecipe:
    """The recipe of masks."""

    bits: int = 8  # of a class, 8 or 16
    colors: tuple[Color, ...] = ()  # of the classes, if files have colours
    names: tuple[str, ...] = ()  # of the classes
    binary: bool = False  # whether all masks have two classes: in a file of 0 and the largest value, that is class 1

    @property
    def form(self) -> Form:
        return Form("rgb", 1, f"uint{self.bits}")


@dataclass(frozen=True)
class ImageRecipe:
    """The recipe of an image.

    images: the images of a sample, if it has several; the first has the codec, bits and gray of the recipe.
    """

    kind: ClassVar[str] = "images"
    unit: ClassVar[str] = "img"

    sizes: tuple[int | None, ...] = (None,)  # one variant each; None keeps the image's own size
    resize: str = "short"
    upscale: bool = True
    codec: str = "jpeg"
    quality: int = 90
    gray: bool = False
    bits: int = 8
    max_pixels: int = 1 << 28
    mask: MaskRecipe | None = None
    images: tuple[NamedImage, ...] = field(default=(), metadata={"newer": True})
    order: str = field(default="listed", metadata={"newer": True})
    shard_samples: int | None = field(default=None, metadata={"newer": True})

    def __post_init__(self) -> None:
        sizes = self.sizes
        if not sizes or any(s is not None and not 1 <= s <= 65_500 for s in sizes) or len(set(sizes)) != len(sizes):
            raise ValueError(
                f"--size is {', '.join(map(str, sizes)) or 'nothing'}, but sizes must be different numbers from 1 to 65500"
            )
        for codec, bits in [(self.codec, self.bits), *((image.codec, image.bits) for image in self.images)]:
            if bits > 8 and codec in JPEGS:
                raise ValueError(f"16 bits do not fit into codec {codec}: give rgb or png, with --codec or in --images")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"--quality is {self.quality}, but must be from 1 to 100")

    @property
    def libraries(self) -> tuple[str, ...]:
        """The packages that read and write images here: the required ones, and the optional ones that are installed."""
        return ("opencv-python-headless", "pillow", "simplejpeg", *sorted({*EXTRAS} & installed_versions().keys()))

    @property
    def form(self) -> Form:
        return Form(self.codec, 1 if self.gray else 3, f"uint{self.bits}")

    def parts(self) -> list[tuple[str, MaskRecipe | ImageRecipe]]:
        """Return how to prepare the image, its mask and each further image, and the prefix of their variants."""
        masks = [] if self.mask is None else [(MASK, self.mask)]
        further = [
            (f"{IMAGE}{one.name}-", replace(self, codec=one.codec, bits=one.bits, gray=one.gray, mask=None, images=()))
            for one in self.images[1:]
        ]
        return [("", self), *masks, *further]

    def variants(self) -> list[tuple[str, int | None, Form]]:
        """Return (name, size, form) of each variant: `parts` in every size. "full" is for images that keep their size."""
        return [(f"{prefix}{size or 'full'}", size, recipe.form) for prefix, recipe in self.parts() for size in self.sizes]


class Record(NamedTuple):
    """A stored image or mask."""

    data: bytes
    height: int
    width: int
    source: Shape  # (height, width) of the file, upright
    classes: Mapping[int, int] = {}  # for a mask, pixel counts by class in its file
    original: bool = False  # whether the bytes are those of the image's file


def prepare_image(
    data: bytes,
    options: ImageRecipe,
    *,
    scratch: Array | None = None,
    companions: Sequence[tuple[str, bytes]] = (),
    room: Room = nullcontext,
) -> list[Record]:
    """Return a record for each variant of the recipe. All sizes of an image are made from one decode.

    scratch: memory of `decode_buffer` that a JPEG may be decoded into. companions: for the mask and each further image, its name in
    messages and the bytes of its file. Raise CodecError if a file cannot be read or encoded, or the images' sizes differ.
    """
    source = SourceImage(data, max_pixels=options.max_pixels)
    upright = np.array([(source.height, source.width)])
    layouts = [layout(upright, size, options.resize, upscale=options.upscale) for size in options.sizes]
    frames: list[Frame] = [[tuple(part[0].tolist()) for part in one] for one in layouts]
    shapes = [shape for shape, _, _ in frames]
    height, width = max(shapes, key=math.prod)
    if height * width > options.max_pixels:
        what = f"--size would make the image {width} x {height} pixels, more than --max-pixels {options.max_pixels}: "
        raise CodecError(f"{what}give a smaller --size, --no-upscale or --resize long", "too-large")
    with room(_memory(source, options, shapes)):
        records = _image_records(data, source, options, frames, scratch)
        for (_, recipe), (called, found) in zip(options.parts()[1:], companions, strict=True):
            try:
                image, masks = SourceImage(found, max_pixels=options.max_pixels), isinstance(recipe, MaskRecipe)
                if (image.height, image.width) != (source.height, source.width):
                    what = f"{image.width} x {image.height} pixels; the sample's first image has {source.width} x {source.height}"
                    raise CodecError(what, "mask-size" if masks else "image-size")
                if isinstance(recipe, MaskRecipe):
                    records += _mask_records(decode_mask(found, recipe, options.max_pixels), frames)
                else:
                    records += _image_records(found, image, recipe, frames, scratch)
            except CodecError as error:
                raise CodecError(f"its {called}: {error}", error.reason) from None
    return records


def _memory(source: SourceImage, options: ImageRecipe, shapes: list[Shape]) -> int:
    """Return the most bytes that preparing takes at a time: either while an image of the sample is decoded, or afterwards, for its
    pixels, the resized pixels, the encoder's copy of these, and all records."""
    count, areas, parts = source.height * source.width, list(map(math.prod, shapes)), len(options.parts())
    stored = 3 * max(options.bits, *(image.bits for image in options.images), 8) // 8
    others = OTHERS_BYTES * count if parts > 1 else 0
    return max(source.memory(_least(shapes)), others, stored * (count + 2 * max(areas) + parts * sum(areas)))


def _least(shapes: list[Shape]) -> Shape:
    return max(h for h, _ in shapes), max(w for _, w in shapes)


def _image_records(
    data: bytes, source: SourceImage, options: ImageRecipe, frames: list[Frame], scratch: Array | None
) -> list[Record]:
    """Return an image in each size, all from one decode."""
    upright, image, shapes = (source.height, source.width), None, [shape for shape, _, _ in frames]
    if options.codec == "original" and upright in shapes and isinstance(source.header, JpegHeader):
        image = source.header.as_is(data, gray=options.gray)
    original = image is not None
    if image is None:
        image = source.decode(at_least=_least(shapes), gray=options.gray, bits=options.bits, scratch=scratch)
    records: dict[int, Record] = {}
    larger = image  # the previous size, if at least twice this one: nearly as exact, with far fewer pixels to average
    for k, shape in sorted(enumerate(shapes), key=lambda pair: pair[1], reverse=True):
        halved = 2 * shape[0] - 1 <= larger.shape[0] and 2 * shape[1] - 1 <= larger.shape[1]  # -1 allows for rounding
        resized = resize(larger if halved else image, shape)
        larger = resized if resized.size < image.size else image
        stored = _stored(resized, frames[k])
        keeps = original and stored.shape[:2] == upright
        record = data if keeps else encode_record(stored, options.codec, quality=options.quality)
        records[k] = Record(record, *frames[k][2], upright, original=keeps)
    return [records[k] for k in range(len(frames))]


def _mask_records(mask: Array, frames: list[Frame]) -> list[Record]:
    """Return a mask in each size: each new pixel takes the class at its centre, since classes cannot be averaged."""
    classes = {k: count for k, count in enumerate(np.bincount(mask.reshape(-1)).tolist()) if count}
    records = list[Record]()
    for frame in frames:
        stored = _stored(cv2.resize(mask, frame[0][::-1], interpolation=cv2.INTER_NEAREST_EXACT), frame)
        records.append(Record(encode_record(stored, "rgb"), *frame[2], mask.shape, classes))
    return records


def _stored(resized: Array, frame: Frame) -> Array:
    """Return the part of a resized image or mask that is stored."""
    _, (top, left), (height, width) = frame
    return np.ascontiguousarray(resized[top : top + height, left : left + width])


def resize(image: Array, shape: Shape) -> Array:
    """Resize to (height, width): averaging pixel areas where a side shrinks, bicubic where it grows."""
    height, width = image.shape[:2]
    less = min(height, shape[0]), min(width, shape[1])
    if less != (height, width):
        image = _average(image, less)
    if less != shape:
        image = cv2.resize(image, shape[::-1], interpolation=cv2.INTER_CUBIC)
    return image


def _average(image: Array, shape: Shape) -> Array:
    """Average pixel areas: exactly where a side keeps its size or shrinks to half or less, to within 2 elsewhere.

    OpenCV's area filter takes about as long as decoding a JPEG. So an image is sampled twice per side by the bilinear filter and
    the samples are averaged, or it is blurred first if it hardly shrinks (benchmarks/LOG.md).
    """
    factors = image.shape[0] / shape[0], image.shape[1] / shape[1]
    if not 1 < min(factors) <= max(factors) < 2:
        return cv2.resize(image, shape[::-1], interpolation=cv2.INTER_AREA)
    if max(factors) > MAX_BLUR_RATIO:
        twice = cv2.resize(image, (2 * shape[1], 2 * shape[0]), interpolation=cv2.INTER_LINEAR)
        return cv2.resize(twice, shape[::-1], interpolation=cv2.INTER_AREA)
    down, across = (np.array([a, 1 - 2 * a, a], np.float32) for a in ((f * f - 1) / SPREAD for f in factors))
    blurred = cv2.sepFilter2D(image, -1, across, down, borderType=cv2.BORDER_REPLICATE)
    return cv2.resize(blurred, shape[::-1], interpolation=cv2.INTER_LINEAR)


# Masks: palette indices, grey values, or colours that a table maps to classes


def read_palette(path: StrPath) -> tuple[tuple[Color, ...], tuple[str, ...]]:
    """Read the colours and names of classes 0, 1, 2 and so on from a text file.

    Each line has red, green and blue, in this order, and a name, separated by commas, tabs or spaces. A first line without numbers
    is a header.
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
            raise PrepError(f"{what} must be red, green, blue (0 to 255, no colour twice) and a name")
        found[numbers[0], numbers[1], numbers[2]] = " ".join(cell for cell in cells if not cell.isdigit()) or str(len(found))
    if not found:
        raise PrepError(f"the palette {path} has no line of red, green, blue and a name")
    return tuple(found), tuple(found.values())


def decode_mask(data: bytes, recipe: MaskRecipe, max_pixels: int = 1 << 28) -> Array:
    """Return each pixel's class in a PNG, uint8 or uint16 [H, W]: its colour's index in the table, else its grey value or index."""
    if recipe.colors:
        color, _ = split_alpha(_header(data, max_pixels).pixels(data))  # alpha is no class
        values = _class_numbers(to_channels(color, gray=False), recipe.colors)
    else:
        values = mask_values(data, max_pixels)
        if recipe.binary and (high := values.max(initial=0)) in HIGHEST:
            if not is_binary(values):
                what = f"the sampled masks are binary, so {high} is class 1; this mask holds other values too"
                raise CodecError(f"{what}: write classes as 0, 1, 2 and so on", "mask-values")
            values = values != 0
    if values.max(initial=0) >> recipe.bits:
        raise CodecError(f"a mask has the value {values.max()}: 8 bits hold at most 255; give --mask-bits 16", "range")
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
        raise CodecError(f"a mask must be PNG, not {header.format}: other formats may change its values", "not-png")
    if header.orientation != 1:
        raise CodecError("the mask has an EXIF orientation, which no mask may have: write it upright", "unsupported")
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
        raise CodecError(f"the mask has colours that the palette lacks (pixels: {unknown.sum()}), such as {first}", "unknown-color")
    return np.asarray(classes)


def _code(rgb: Array) -> Array:
    """Return a number for each colour, of 8 or 16 bits per channel."""
    return np.asarray(rgb.astype(np.int64) @ [1 << 32, 1 << 16, 1])
