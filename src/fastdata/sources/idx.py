"""The idx files of MNIST, Fashion-MNIST, EMNIST and the like: images, and a file of labels next to them."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from math import prod
from typing import BinaryIO

import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Folder, Item, Kind, Selection, even_sizes, make_list, open_once, read_range, to_png, unreadable
from fastdata.sources.inputs import SourceList, splits_error

__all__ = ["KIND"]

IMAGES = re.compile(r"(.*)images([-.])idx[34]([-.])ubyte(\.gz)?", re.DOTALL)
NAMED = re.compile(r".*[-.](idx[1-4]([-.]\w+)?|ubyte)(\.gz)?", re.DOTALL)
TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


def _takes(path: AnyPath) -> bool:
    return path.is_file() and NAMED.fullmatch(path.name) is not None


def _inside(folder: Folder) -> list[AnyPath]:
    files = [name for name in folder.files if IMAGES.fullmatch(name)]
    files = [name for name in files if name.removesuffix(".gz") == name or name.removesuffix(".gz") not in files]
    splits = {name.partition("images")[0].strip("-_.") or name: str(folder.path / name) for name in files}
    if len(splits) > 1:
        raise splits_error(folder.path, splits)
    return [folder.path / name for name in files]


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    items, labels = list[Item](), list[int | None]()
    for path in files:
        shape = _shape(path)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise PrepError(
                f"{path} holds {len(shape)} dimensions, {' x '.join(map(str, shape))}; images are [n, height, width] or "
                f"[n, height, width, 3]{': give the file of the images, labels are found next to it' * (len(shape) == 1)}"
            )
        name = str(path.relative_to(root))
        sizes = even_sizes(path, shape[0])
        items += [(f"{name}/{k:06d}", sizes[k], "", ("idx", name, k, *shape[1:])) for k in range(shape[0])]
        labels += _labels(path, shape[0]) or [None] * shape[0]
    return make_list(root, items, labels, by="the file of labels")


def _labels(path: AnyPath, count: int) -> list[int]:
    """Read the labels from the file whose name matches that of the images; return none if there is no such file."""
    match = IMAGES.fullmatch(path.name)
    if match is None:
        return []
    plain = f"{match[1]}labels{match[2]}idx1{match[3]}ubyte"
    labels = next((p for ending in ("", ".gz") if (p := path.with_name(plain + ending)).is_file()), None)
    if labels is None:
        return []
    shape = _shape(labels)
    if shape != (count,):
        raise PrepError(f"{labels} holds {' x '.join(map(str, shape))} labels, {path} {count} images; the files do not match")
    with _open(labels) as file:
        file.seek(8)
        return list(file.read(count))


def _open(path: AnyPath) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _shape(path: AnyPath) -> tuple[int, ...]:
    """Read the shape from the header, and check that the file is exactly that long.

    Raises:
        PrepError: the file is not an idx file of bytes, or is too short or too long.
    """
    try:
        with _open(path) as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or not 1 <= head[3] <= 4:
                raise PrepError(
                    f"{path} is not an idx file: it begins with {head.hex(' ') or 'nothing'}, not 00 00 08 and 01 to 04"
                )
            if head[2] != 0x08:
                raise PrepError(f"{path} holds {TYPES[head[2]]}; only uint8 is read: convert it, or write the images as files")
            numbers = file.read(4 * head[3])
            shape = tuple(int.from_bytes(numbers[k : k + 4], "big") for k in range(0, len(numbers), 4))
            length = file.seek(0, os.SEEK_END) - 4 - len(numbers)
    except (OSError, EOFError, zlib.error) as error:  # also a .gz file that is not gzip, as OSError
        raise unreadable(path, error) from error
    if len(numbers) < 4 * head[3] or length != prod(shape):
        found = f"{' x '.join(map(str, shape))} = {prod(shape)} bytes, but {length} follow"
        raise PrepError(f"{path} says {found}: it was cut short or is damaged; copy it again")
    return shape


def _read(path: AnyPath, index: int, *shape: int) -> bytes:
    size = prod(shape)
    start = 4 + 4 * (1 + len(shape)) + index * size
    data = (_read_gzip if path.suffix == ".gz" else read_range)(path, start, size)
    pixels = np.frombuffer(data, np.uint8).reshape(shape)
    return to_png(pixels[..., 0] if shape[2:] == (1,) else pixels)


def _read_gzip(path: AnyPath, start: int, size: int) -> bytes:
    """Read a range of a compressed file and keep it open, so that ranges in order decompress it only once."""
    file = open_once(path, _open)
    try:
        file.seek(start)
        data = file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CodecError(f"the archive is damaged: {error}", "truncated") from None
    if len(data) < size:
        raise CodecError("the archive ends inside the image", "truncated")
    return data


KIND = Kind("idx", _takes, _inputs, _read, _inside)
