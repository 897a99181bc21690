"""Records: one image as stored bytes, by codec.

jpeg   a JPEG on the restart grid (fastdata.codec.jpeg), uint8
png    an ordinary PNG, uint8 or uint16
rgb    the bare pixels, [H, W, C] in C order, uint8 or little-endian uint16; the size stands in samples.npy
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fastdata.codec.jpeg import decode_jpeg, encode_jpeg
from fastdata.errors import CodecError

__all__ = ["CODECS", "PixelFormat", "decode_record", "encode_record"]

Array = np.ndarray[Any, np.dtype[Any]]

CODECS = ("jpeg", "rgb", "png")


@dataclass(frozen=True)
class PixelFormat:
    """What the records of a variant hold: the codec, 1 or 3 channels, "uint8" or "uint16"."""

    codec: str
    channels: int
    dtype: str


def encode_record(image: Array, codec: str, *, quality: int = 90) -> bytes:
    """Encode RGB [H, W, 3] or grey [H, W], uint8 or uint16 (not for jpeg), as one record."""
    if codec == "jpeg":
        return encode_jpeg(image, quality=quality)
    if codec == "rgb":
        return np.ascontiguousarray(image, image.dtype.newbyteorder("<")).tobytes()
    ok, data = cv2.imencode(".png", image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not ok:
        raise CodecError(f"OpenCV could not encode {image.shape} pixels as PNG", "unencodable")
    return data.tobytes()


def decode_record(
    data: bytes | memoryview, form: PixelFormat, height: int, width: int, *, scratch: Array | None = None, fast: bool = False
) -> Array:
    """Decode one record to [H, W, C] of the format's dtype; read-only, and a view of `data` or `scratch` where that saves a copy.

    `fast` trades exactness for time, in JPEG records.

    Raises:
        CodecError: the bytes are damaged, or hold an image of another size.
    """
    shape = (height, width, form.channels)
    if form.codec == "rgb":
        dtype = np.dtype(form.dtype).newbyteorder("<")
        if len(data) != height * width * form.channels * dtype.itemsize:
            raise CodecError(f"a raw record of {len(data)} bytes does not hold {shape} {form.dtype}")
        return np.frombuffer(data, dtype).reshape(shape)
    if form.codec == "jpeg":
        large = scratch is not None and scratch.size >= height * width * form.channels
        image = decode_jpeg(data, gray=form.channels == 1, fast=fast, scratch=scratch if large else None)
    else:
        image = _decode_png(data, form)
    if image.shape != shape or image.dtype != form.dtype:
        raise CodecError(f"a {form.codec} record holds {image.shape} {image.dtype}, the index says {shape} {form.dtype}")
    return image


def _decode_png(data: bytes | memoryview, form: PixelFormat) -> Array:
    flags = cv2.IMREAD_UNCHANGED if form.channels == 1 else cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if len(data) else None
    if image is None:
        raise CodecError("damaged PNG")
    return image if image.ndim == 3 else image[:, :, None]
