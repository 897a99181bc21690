"""What every image format has in common: a header that says the size, and a way from there to the pixels.

Also the tags of a TIFF directory, because EXIF is one and stands in JPEG, PNG and WebP too. Nothing here trusts a length or
an offset: damaged bytes give a `CodecError` or, where Python says it more simply, a `struct.error` or `IndexError` that
`SourceImage` turns into one.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels

__all__ = ["ORIENTATION", "Header", "Tags", "directories", "exif_orientation", "read_tags", "unsupported"]

Tags = dict[int, tuple[int, ...]]

ORIENTATION = 274
INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 16: "Q", 17: "q", 18: "Q"}  # TIFF type: struct code


@dataclass(frozen=True, kw_only=True)
class Header(ABC):
    """What a file says before its pixels. `height` and `width` are as stored, before `orientation` (as in EXIF).

    `deep`: it has more than 8 bits, though `pixels` may give 8.
    """

    format: str
    height: int
    width: int
    orientation: int = 1
    deep: bool = False

    @abstractmethod
    def pixels(self, data: bytes) -> Pixels:
        """The pixels of the file `data`, as stored; raises `CodecError` (truncated, unsupported, undecodable)."""


def unsupported(what: str) -> CodecError:
    """The error for an image that is whole, but of a kind that is not read here."""
    return CodecError(f"{what} is not supported; convert the image to PNG or JPEG", "unsupported")


def read_tags(block: bytes, wanted: Collection[int]) -> Tags:
    """Those integer tags that are `wanted` and not empty, from the first directory of a TIFF or BigTIFF block."""
    return next(directories(block, wanted), {})


def directories(block: bytes, wanted: Collection[int]) -> Iterator[Tags]:
    """The same of each directory in the chain, which is each page of a TIFF."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        raise CodecError("neither II nor MM", "undecodable")
    big = struct.unpack_from(order + "H", block, 2)[0] == 43  # BigTIFF: sizes and offsets of eight bytes
    number, length, word = ("Q", "Q", 8) if big else ("H", "I", 4)

    def offset(at: int) -> int:
        return min(int(struct.unpack_from(order + length, block, at)[0]), len(block))

    start, seen = offset(word), set[int]()
    while start:
        if start in seen:
            raise CodecError("the TIFF's chain of pages leads back to one of them", "undecodable")
        seen.add(start)
        tags: Tags = {}
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
        yield tags
        start = offset(first + step * entries)


def exif_orientation(block: bytes) -> int:
    """Orientation, 1 to 8, from the TIFF block in EXIF; 1 when it is absent or damaged, as in image viewers."""
    try:
        turn = read_tags(block, (ORIENTATION,)).get(ORIENTATION, (1,))[0]
    except (CodecError, struct.error):
        return 1
    return turn if 1 <= turn <= 8 else 1
