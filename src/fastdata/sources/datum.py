"""Caffe's Datum, a protobuf message: an image as pixels or as a file, and a number of its class."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from fastdata.errors import CodecError
from fastdata.sources.archive import pnm

__all__ = ["Datum", "read_datum"]

WIRES = {1: (0,), 2: (0,), 3: (0,), 4: (2,), 5: (0,), 6: (2, 5), 7: (0,)}  # of channels height width data label float_data encoded


class Datum(NamedTuple):
    """A message. data: None where it has none. floats: whether it has float data, which is no image."""

    shape: tuple[int, int, int]
    data: memoryview | None
    label: int | None
    floats: bool
    encoded: bool

    def file(self) -> bytes:
        """The image as a file. Caffe's pixels are [channels, height, width], blue first."""
        if self.data is None:
            raise CodecError("the Datum holds floats, no bytes" if self.floats else "the Datum holds no image", "no-image")
        if self.encoded:
            return bytes(self.data)
        if self.shape[0] not in (1, 3) or min(self.shape) < 1:
            raise CodecError(f"a Datum of {' x '.join(map(str, self.shape))}; one or three channels are read", "unsupported")
        if len(self.data) != prod(self.shape):
            raise CodecError(f"the Datum has {len(self.data)} bytes, its sizes need {prod(self.shape)}", "truncated")
        pixels = np.frombuffer(self.data, np.uint8).reshape(self.shape)
        return pnm(pixels[0] if self.shape[0] == 1 else pixels[::-1].transpose(1, 2, 0))


def read_datum(value: memoryview) -> Datum | None:
    """Parse a message; None if it is something else. Of the pixels nothing is read."""
    found: dict[int, int] = {}
    data, place, floats = None, 0, False
    try:
        while place < len(value):
            tag, place = _varint(value, place)
            field, wire = tag >> 3, tag & 7
            if wire not in WIRES.get(field, ()):
                return None
            floats = floats or field == 6
            if wire == 0:
                found[field], place = _varint(value, place)
            else:
                length, place = (4, place) if wire == 5 else _varint(value, place)
                if length > len(value) - place:
                    return None
                data = value[place : place + length] if field == 4 else data
                place += length
    except IndexError:
        return None
    if not found and data is None:
        return None
    label = found.get(5)
    shape = found.get(1, 0), found.get(2, 0), found.get(3, 0)
    return Datum(shape, data, label - (1 << 64) if label is not None and label >> 63 else label, floats, bool(found.get(7)))


def _varint(value: memoryview, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
        if shift > 63:
            raise IndexError("no number is that long")
