"""One image: from the bytes of a file to the records of every size asked for. Pure; what a shard holds is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.codec.pixels import CODECS, encode_record
from fastdata.codec.planes import even
from fastdata.codec.source import SourceImage
from fastdata.prepare.resize import center, resize, target_shape

__all__ = ["ImageOptions", "Record", "prepare_image"]

Array = np.ndarray[Any, np.dtype[Any]]

RESIZE_MODES = ("short", "long", "crop", "stretch")


@dataclass(frozen=True)
class ImageOptions:
    """What becomes of an image. sizes: one variant each; None keeps the image's own size."""

    sizes: tuple[int | None, ...] = (None,)
    resize: str = "short"
    upscale: bool = False
    codec: str = "jpeg"
    quality: int = 90
    gray: bool = False
    bits: int = 8
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 1 << 28

    def __post_init__(self) -> None:
        sizes = self.sizes
        if not sizes or any(s is not None and not 1 <= s <= 65_500 for s in sizes) or len(set(sizes)) != len(sizes):
            raise ValueError(f"size is {sizes}, but sizes must be different numbers from 1 to 65500")
        for name, value, known in (
            ("resize", self.resize, RESIZE_MODES),
            ("codec", self.codec, CODECS),
            ("bits", self.bits, (8, 16)),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(map(str, known))}")
        if self.bits == 16 and self.codec == "jpeg":
            raise ValueError("bits is 16, but a JPEG holds 8: choose codec rgb or png (--codec rgb)")
        if self.codec == "yuv420" and (self.bits == 16 or self.gray):
            raise ValueError("yuv420 holds colours in 8 bits: choose codec rgb or png for bits=16, jpeg, rgb or png for gray=True")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality is {self.quality}, but must be from 1 to 100")
        if len(self.background) != 3 or not all(0 <= c <= 255 for c in self.background):
            raise ValueError(f"background is {self.background}, but must be three numbers from 0 to 255")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels is {self.max_pixels}, but must be positive")


@dataclass(frozen=True)
class Record:
    """One stored image."""

    data: bytes
    height: int
    width: int


def prepare_image(data: bytes, options: ImageOptions, *, scratch: Array | None = None) -> list[Record]:
    """Make one record per size, all from one decode. A JPEG at least twice as large as needed is decoded at 1/2, 1/4 or 1/8.

    Args:
        data: the bytes of an image file of any format.
        options: what to make of it.
        scratch: flat uint8 array that a large decode may use.

    Raises:
        CodecError: it is not an image, or can't be decoded or encoded.
    """
    source = SourceImage(data, max_pixels=options.max_pixels)
    shapes = [target_shape(source.height, source.width, size, options.resize, options.upscale) for size in options.sizes]
    at_least = max(h for h, _ in shapes), max(w for _, w in shapes)
    image = source.decode(at_least=at_least, gray=options.gray, bits=options.bits, background=options.background, scratch=scratch)
    made: dict[int | None, Record] = {}
    larger = image  # the size before, where this one is at most half of it: nearly as exact, and far fewer pixels to average
    for size, shape in sorted(zip(options.sizes, shapes, strict=True), key=lambda pair: pair[1], reverse=True):
        halved = 2 * shape[0] - 1 <= larger.shape[0] and 2 * shape[1] - 1 <= larger.shape[1]  # but for rounding
        resized = resize(larger if halved else image, shape)
        larger = resized if resized.size < image.size else image
        if options.resize == "crop" and size is not None:
            resized = center(resized, size)
        height, width = resized.shape[:2]
        if options.codec == "yuv420":
            height, width = even(height), even(width)
        made[size] = Record(encode_record(resized, options.codec, quality=options.quality), height, width)
    return [made[size] for size in options.sizes]
