"""Read the numbers in PNG files and in TIFF files of one or many pages."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Any

import numpy as np

from fastdata.arrays.readers import Opened
from fastdata.errors import CodecError
from fastdata.images.header import Tags, directories
from fastdata.images.image_file import SourceImage
from fastdata.images.opencv_files import GRAY, INDEXED, PngHeader
from fastdata.images.opencv_files import RGB as PNG_RGB
from fastdata.images.pillow_files import open_image, strict
from fastdata.images.tiff_file import BLACK_IS_0, RGB, Tag, check_pieces, first_of, values_of
from fastdata.remote.path import AnyPath

__all__ = ["open_array"]

Array = np.ndarray[Any, np.dtype[Any]]
Kind = tuple[int, ...]

NUMBERS = {1: "u", 2: "i", 3: "f"}  # sample formats


def open_array(paths: list[AnyPath]) -> Opened:
    """Open a file as [H, W] or [pages, H, W], with a last axis of colours if there are any."""
    (path,) = paths
    data = path.read_bytes()
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _open_tiff(data)
    image = SourceImage(data)
    header = image.header
    if not isinstance(header, PngHeader):
        raise CodecError(f"it is {image.format}, and neither TIFF nor PNG", "unsupported")
    if header.color_type in (GRAY, INDEXED):
        read, sides = header.values, [header.height, header.width]
    elif header.color_type == PNG_RGB and not header.transparency:
        read, sides = lambda data: header.pixels(data).color, [header.height, header.width, 3]
    else:
        raise CodecError("it has an alpha channel: save grey, or red, green and blue", "unsupported")
    dtype = np.dtype(np.uint16 if header.depth == 16 else np.uint8)
    return Opened(tuple(sides), dtype, lambda: read(data))


def _open_tiff(data: bytes) -> Opened:
    try:
        pages = list(directories(data, frozenset(Tag)))
    except struct.error:
        raise CodecError("the TIFF ends inside its header", "truncated") from None
    kinds = {_kind(tags) for tags in pages}
    if not pages:
        raise CodecError("the TIFF has no page", "truncated")
    for tags in pages:
        check_pieces(tags, data)
    if len(kinds) != 1:
        raise CodecError(f"its pages differ in size or kind: {sorted(kinds)[:3]}", "unequal-slices")
    height, width, bits, samples, photometric, number, turn = kinds.pop()
    natural = bits in (8, 16, 32, 64) and (number != 3 or bits > 8)
    if not natural or number not in NUMBERS or (photometric, samples) not in ((BLACK_IS_0, 1), (RGB, 3)) or turn > 1:
        raise CodecError("a TIFF other than grey or RGB of 8 to 64 bits, upright and without alpha", "unsupported")
    count = re.search(rb"ImageJ=[^\0]{0,40}\nimages=(\d+)", data)
    if count and int(count[1]) != len(pages):
        raise CodecError(f"ImageJ says that there are {int(count[1])} images, the TIFF has {len(pages)} pages", "unsupported")
    shape = (*((len(pages),) if len(pages) > 1 else ()), height, width, *((3,) if samples == 3 else ()))
    dtype = np.dtype(f"{NUMBERS[number]}{bits // 8}")
    by_pillow = (dtype == np.uint8 or (dtype == np.uint16 and samples == 1)) and data[:4] != b"MM\0+"
    return Opened(shape, dtype, partial(_read, data, len(pages), shape, dtype, by_pillow))


def _kind(tags: Tags) -> Kind:
    """Return height, width, bits, samples, photometric interpretation, sample format and orientation of a page."""
    bits, numbers = set(tags.get(Tag.BITS, (1,))), set(tags.get(Tag.SAMPLE_FORMAT, (1,)))
    return (
        first_of(tags, Tag.HEIGHT, 0),
        first_of(tags, Tag.WIDTH, 0),
        bits.pop() if len(bits) == 1 else 0,
        first_of(tags, Tag.SAMPLES, 1),
        first_of(tags, Tag.PHOTOMETRIC, -1),
        numbers.pop() if len(numbers) == 1 else 0,
        first_of(tags, Tag.TURN, 1),
    )


def _read(data: bytes, pages: int, shape: tuple[int, ...], dtype: np.dtype[Any], by_pillow: bool) -> Array:
    out = np.empty((pages, *shape[pages > 1 :]), dtype)
    if not by_pillow:
        for page, target in enumerate(out):
            target[...] = values_of(data, page).reshape(target.shape)
        return out.reshape(shape)
    with strict("TIFF"):
        image = open_image(data, "Tiff")
        for page, target in enumerate(out):
            image.seek(page)
            image.load()
            target[...] = np.asarray(image)
    return out.reshape(shape)
