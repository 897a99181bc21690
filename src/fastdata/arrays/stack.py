"""TIFF files of one or many pages, and PNG: the numbers that stand in them, of 8 or 16 bits."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.arrays.readers import Opened
from fastdata.errors import CodecError
from fastdata.images.image_file import SourceImage
from fastdata.images.opencv_files import PngHeader
from fastdata.images.tiff import BLACK_IS_0, RGB, TiffHeader, read_tiff

__all__ = ["open_array"]

Array = np.ndarray[Any, np.dtype[Any]]


def open_array(paths: list[Path]) -> Opened:
    """[H, W] or [pages, H, W], and a last axis of colours if there are any."""
    (path,) = paths
    data = path.read_bytes()
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _open_tiff(bytearray(data))
    image = SourceImage(data)
    if not isinstance(image.header, PngHeader):
        raise CodecError(f"it is {image.format}, and neither TIFF nor PNG", "unsupported")
    values = image.header.values(data)
    if values.ndim == 3:
        pixels = image.header.pixels(data)
        if pixels.alpha is not None:
            raise CodecError("it has an alpha channel: save grey, or red, green and blue", "unsupported")
        values = pixels.color
    return Opened(values.shape, values.dtype, lambda: values)


def _open_tiff(data: bytearray) -> Opened:
    try:
        pages = list(_pages(data))
        first, kinds = pages[0], {_kind(header) for header in pages}
    except (struct.error, IndexError):
        raise CodecError("the TIFF ends inside its header", "truncated") from None
    if len(kinds) != 1:
        raise CodecError(f"its pages differ in size or kind: {sorted(kinds)[:3]}", "unequal-slices")
    if (
        first.photometric not in (BLACK_IS_0, RGB)
        or first.bits not in (8, 16)
        or first.samples not in (1, 3)
        or first.orientation > 1
    ):
        raise CodecError("a TIFF other than grey or RGB of 8 or 16 bits, upright and without alpha", "unsupported")
    said = re.search(rb"ImageJ=[^\0]{0,40}\nimages=(\d+)", data)
    if said and int(said[1]) != len(pages):
        raise CodecError(f"ImageJ says that there are {int(said[1])} images, the TIFF has {len(pages)} pages", "unsupported")
    shape = (*((len(pages),) if len(pages) > 1 else ()), first.height, first.width, *((3,) if first.samples == 3 else ()))
    return Opened(shape, np.dtype(f"u{first.bits // 8}"), partial(_read, data, pages, shape))


def _kind(header: TiffHeader) -> tuple[int, ...]:
    return header.height, header.width, header.bits, header.samples, header.photometric


def _read(data: bytearray, pages: list[TiffHeader], shape: tuple[int, ...]) -> Array:
    out = np.empty((len(pages), *shape[len(pages) > 1 :]), f"u{pages[0].bits // 8}")
    for target, header in zip(out, pages, strict=True):
        target[...] = header.pixels(data).color  # type: ignore[arg-type]  # a bytearray does as well
    return out.reshape(shape)


def _pages(data: bytearray) -> Iterator[TiffHeader]:
    """Every directory in the file's chain. `read_tiff` takes the first one, so each is made the first in turn."""
    order, big = "<" if data[:2] == b"II" else ">", b"+" in data[2:4]
    at, word, number, size = (8, order + "Q", order + "Q", 20) if big else (4, order + "I", order + "H", 12)
    offset, seen = struct.unpack_from(word, data, at)[0], set[int]()
    while offset:
        if offset in seen or offset >= len(data):
            raise CodecError("the TIFF's chain of pages is broken", "truncated")
        seen.add(offset)
        struct.pack_into(word, data, at, offset)
        yield read_tiff(data)  # type: ignore[arg-type]
        entries = struct.unpack_from(number, data, offset)[0]
        offset = struct.unpack_from(word, data, offset + struct.calcsize(number) + entries * size)[0]
    if not seen:
        raise CodecError("the TIFF has no page", "truncated")
