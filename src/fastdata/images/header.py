"""What all image formats share: a header with the size, and a method that decodes the pixels.

This module also reads the tags of TIFF directories, because EXIF is one and occurs in JPEG, PNG and WebP too. Lengths and offsets
are never trusted: damaged bytes raise a `CodecError`, or a `struct.error` or `IndexError` that `SourceImage` turns into one.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels

__all__ = ["FIXED_BYTES", "ORIENTATION", "Header", "Tags", "exif_orientation", "read_tags", "unsupported"]

Tags = dict[int, tuple[int, ...]]

ORIENTATION = 274
FIXED_BYTES = 1 << 23  # what a decoder takes for the smallest image
INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 16: "Q", 17: "q", 18: "Q"}  # TIFF type: struct code


@dataclass(frozen=True, kw_only=True)
class Header(ABC):
    """What a file declares before its pixels.

    `height` and `width` are as stored, before `orientation` (as in EXIF). `deep`: the file has more than 8 bits, but `pixels` may
    return 8. `pixel_bytes`: the memory for a pixel while it is decoded.
    """

    pixel_bytes: ClassVar[int] = 28  # JPEG 2000 with alpha takes 25, most formats half of it

    format: str
    height: int
    width: int
    orientation: int = 1
    deep: bool = False

    def memory(self) -> int:
        """Return the most bytes that decoding and `flatten` take at a time, beside the file: measured for each library."""
        return self.pixel_bytes * self.height * self.width + FIXED_BYTES

    @abstractmethod
    def pixels(self, data: bytes) -> Pixels:
        """Decode the file `data` to its pixels as stored; raises `CodecError` (truncated, unsupported, undecodable)."""


def unsupported(what: str) -> CodecError:
    """Return the error for an intact image of a kind that is not read here."""
    return CodecError(f"{what} is not supported; convert the image to PNG or JPEG", "unsupported")


def read_tags(block: bytes, wanted: Collection[int]) -> Tags:
    """Return the integer tags that are `wanted` and not empty, from the first directory of a TIFF or BigTIFF block."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        raise CodecError("neither II nor MM", "undecodable")
    big = struct.unpack_from(order + "H", block, 2)[0] == 43  # BigTIFF: sizes and offsets of eight bytes
    number, length, word = ("Q", "Q", 8) if big else ("H", "I", 4)

    def offset(at: int) -> int:
        return min(int(struct.unpack_from(order + length, block, at)[0]), len(block))

    tags: Tags = {}
    if not (start := offset(word)):
        return tags
    first = start + struct.calcsize(order + number)
    entries = struct.unpack_from(order + number, block, start)[0]
    step = 4 + 2 * word
    for at in range(first, first + step * entries, step):
        tag, kind, count = struct.unpack_from(order + "HH" + length, block, at)
        if tag in wanted and kind in INTEGERS and count:
            layout = f"{order}{count}{INTEGERS[kind]}"
            inside = struct.calcsize(layout) <= word
            where = at + 4 + word if inside else offset(at + 4 + word)
            tags.setdefault(tag, struct.unpack_from(layout, block, where))
    return tags


def exif_orientation(block: bytes) -> int:
    """Return the orientation, 1 to 8, from EXIF's TIFF block; 1 if it is absent or damaged, as in image viewers."""
    try:
        turn = read_tags(block, (ORIENTATION,)).get(ORIENTATION, (1,))[0]
    except (CodecError, struct.error):
        return 1
    return turn if 1 <= turn <= 8 else 1
