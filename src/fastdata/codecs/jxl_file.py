"""Read JPEG XL with pillow-jxl-plugin. It has no way to ask for the size before all pixels are decoded, so that is parsed here."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fastdata.codecs.channels import Pixels, upright
from fastdata.codecs.header import Header, unsupported
from fastdata.codecs.jpeg_file import read_jpeg
from fastdata.codecs.pillow_files import extra, strict
from fastdata.errors import CodecError

__all__ = ["read_jxl"]

CODESTREAM = re.compile(rb"(?:.*?jxl(?:c|c.{8}|p.{4}|p.{12}))?\xff\x0a", re.S)  # bare, or in a box
RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
SIDES = (9, 13, 18, 30)  # bits that a side may have
CHANNELS = {"I;16": 1, "L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


@dataclass(frozen=True, kw_only=True)
class JxlHeader(Header):
    format: str = "jxl"

    def pixels(self, data: bytes) -> Pixels:
        """Decode; libjxl returns upright pixels. A losslessly packed JPEG is unpacked."""
        decoder = extra("pillow_jxl", "pillow-jxl-plugin", "JPEG XL").Decoder(num_threads=0)
        with strict("JPEG XL"):
            is_jpeg, about, raw, *_ = decoder(data)
            if is_jpeg:
                header = read_jpeg(raw)
                return Pixels(upright(header.pixels(raw).color, header.orientation))
            channels = CHANNELS.get(about.mode)
            if channels is None:
                raise unsupported(f"JPEG XL with pixels of the mode {about.mode}")
            values = np.frombuffer(raw, np.uint16 if about.mode == "I;16" else np.uint8).reshape(
                about.height, about.width, channels
            )
            color = values[..., 0] if channels < 3 else values[..., :3]
            return Pixels(np.ascontiguousarray(color), None if channels % 2 else np.ascontiguousarray(values[..., -1]))


def read_jxl(data: bytes) -> JxlHeader:
    """Read the header; height and width are upright."""
    start = CODESTREAM.match(data)
    if start is None:
        raise CodecError("the JPEG XL file has no codestream", "undecodable")
    bits = int.from_bytes(data[start.end() : start.end() + 32].ljust(32, b"\0"), "little")  # low bits first

    def take(count: int) -> int:
        nonlocal bits
        number = bits & ((1 << count) - 1)
        bits >>= count
        return number

    small = take(1)

    def side() -> int:
        return 8 * (take(5) + 1) if small else take(SIDES[take(2)]) + 1

    height, ratio = side(), take(3)
    width = height * RATIOS[ratio - 1][0] // RATIOS[ratio - 1][1] if ratio else side()
    deep = False
    if not take(1):  # not all fields have their defaults
        extra_fields = take(1)
        if extra_fields and take(3) >= 4:  # the orientation, one less than in EXIF
            height, width = width, height
        if not (extra_fields and (take(1) or take(1) or take(1))):  # intrinsic size, preview, animation
            deep = take(1) == 1 or take(2) > 0  # floats, or more than 8 bits
    return JxlHeader(height=height, width=width, deep=deep)
