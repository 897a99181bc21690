"""Read JPEG XL: the size is parsed here, since pillow-jxl-plugin always decodes; losslessly packed JPEGs are unpacked."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from fastdata.errors import CodecError
from fastdata.images.channels import Pixels, upright
from fastdata.images.header import Header, unsupported
from fastdata.images.jpeg_file import read_jpeg
from fastdata.images.pillow_files import extra, strict

__all__ = ["read_jxl"]

RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
SIDES = (9, 13, 18, 30)  # bits that a side may have
CHANNELS = {"I;16": 1, "L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


@dataclass(frozen=True, kw_only=True)
class JxlHeader(Header):
    format: str = "jxl"

    def pixels(self, data: bytes) -> Pixels:
        """Decode; libjxl returns upright pixels."""
        decoder = extra("pillow_jxl", "pillow-jxl-plugin", "JPEG XL").Decoder(num_threads=0)
        with strict("JPEG XL"):
            is_jpeg, about, raw, *_ = decoder(data)
            if not is_jpeg:
                return _split(raw, about.mode, about.height, about.width)
            header = read_jpeg(raw)
            return Pixels(upright(header.pixels(raw).color, header.orientation))


def _split(raw: bytes, mode: str, height: int, width: int) -> Pixels:
    channels = CHANNELS.get(mode)
    if channels is None:
        raise unsupported(f"JPEG XL with pixels of the mode {mode}")
    values = np.frombuffer(raw, np.uint16 if mode == "I;16" else np.uint8).reshape(height, width, channels)
    color = values[..., 0] if channels < 3 else values[..., :3]
    return Pixels(np.ascontiguousarray(color), None if channels % 2 else np.ascontiguousarray(values[..., -1]))


def read_jxl(data: bytes) -> JxlHeader:
    """Read the header; height and width are upright."""
    bits = _Bits(_codestream(data))
    small = bits.take(1)

    def side() -> int:
        return 8 * (bits.take(5) + 1) if small else bits.take(SIDES[bits.take(2)]) + 1

    height = side()
    ratio = bits.take(3)
    width = height * RATIOS[ratio - 1][0] // RATIOS[ratio - 1][1] if ratio else side()
    deep = False
    if not bits.take(1):  # not all fields have their defaults
        extra_fields = bits.take(1)
        if extra_fields and bits.take(3) >= 4:  # the orientation, one less than in EXIF
            height, width = width, height
        if not (extra_fields and (bits.take(1) or bits.take(1) or bits.take(1))):  # intrinsic size, preview, animation
            deep = bits.take(1) == 1 or bits.take(2) > 0  # floats, or more than 8 bits
    return JxlHeader(height=height, width=width, deep=deep)


def _codestream(data: bytes) -> bytes:
    """Return the start of the codestream, which may be in boxes."""
    at = 0
    while data[at : at + 2] != b"\xff\x0a":
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind in (b"jxlc", b"jxlp"):
            at += 8 + 8 * (size == 1) + 4 * (kind == b"jxlp")
            break
        size = struct.unpack_from(">Q", data, at + 8)[0] if size == 1 else size
        if size < 8:
            raise CodecError("the JPEG XL file has no codestream", "undecodable")
        at += size
    return data[at + 2 : at + 34]


class _Bits:
    """A reader of numbers from bytes, low bits first."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise CodecError("the JPEG XL ends inside its header", "truncated")
        number = self._value & ((1 << count) - 1)
        self._value >>= count
        return number
