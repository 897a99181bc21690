"""Records: one image as stored bytes, by codec.

jpeg      a JPEG on the restart grid (fastdata.codecs.jpeg_grid), uint8
original  such a JPEG, or an unchanged source JPEG of any layout that libjpeg decodes, uint8
png       an ordinary PNG, uint8 or uint16
rgb       raw pixels, [H, W, C] in C order, uint8 or little-endian uint16; samples.npy has the size
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.codecs.jpeg_crop import Cut, cut_jpeg
from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg, jpeg_size
from fastdata.errors import CodecError
from fastdata.store.manifest import Form

__all__ = ["LEAST_SHRUNK", "Region", "Window", "decode_record", "decode_window", "encode_record"]

Array = np.ndarray[Any, np.dtype[Any]]

LEAST_SHRUNK = 8  # pixels: in smaller images, two scales give the same size


class Window(NamedTuple):
    """The part of an image that is needed: a box inside it, in its pixels.

    shrink: 2, 4 or 8 if that many pixels per side may be merged into one, which JPEG decoders do for free. fast: less exact JPEG.
    """

    top: int
    left: int
    height: int
    width: int
    shrink: int = 1
    fast: bool = False

    @property
    def empty(self) -> bool:
        return self.height <= 0 or self.width <= 0

    @property
    def area(self) -> int:
        return self.height * self.width


class Region(NamedTuple):
    """Pixels that contain a window, [H, W, C], or RGBA for RGB. The first is at (top, left) of the image; each merges `shrink` x
    `shrink` pixels."""

    pixels: Array
    top: int = 0
    left: int = 0
    shrink: int = 1


def encode_record(image: Array, codec: str, *, quality: int = 90) -> bytes:
    """Encode RGB [H, W, 3] or grey [H, W], uint8 or uint16, as a record. JPEGs take uint8 only."""
    if codec in ("jpeg", "original"):
        return encode_jpeg(image, quality=quality)
    if codec == "rgb":
        return np.ascontiguousarray(image, image.dtype.newbyteorder("<")).tobytes()
    ok, data = cv2.imencode(".png", image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not ok:
        raise CodecError(f"OpenCV could not encode {image.shape} pixels as PNG", "unencodable")
    return data.tobytes()


def decode_record(data: bytes | memoryview, form: Form, height: int, width: int) -> Array:
    """Decode a record to [H, W, C] of the format's dtype: read-only, and a view of `data` where that saves a copy.

    Raises:
        CodecError: if the bytes are damaged, or have an image of another size.
    """
    shape = (height, width, form.channels)
    if form.codec == "rgb":
        dtype = np.dtype(form.dtype).newbyteorder("<")
        if len(data) != height * width * form.channels * dtype.itemsize:
            raise CodecError(f"a raw record of {len(data)} bytes does not hold {shape} {form.dtype}")
        return np.frombuffer(data, dtype).reshape(shape)
    found = jpeg_size(data) if form.jpegs else (int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big"))
    if found != (height, width):  # before decoding: damage may ask for gigabytes
        raise CodecError(f"a {form.codec} record holds {found} pixels, the index says {(height, width)}")
    image = decode_jpeg(data, gray=form.channels == 1) if form.jpegs else _decode_png(data, form)
    if image.shape != shape or image.dtype != form.dtype:
        raise CodecError(f"a {form.codec} record holds {image.shape} {image.dtype}, the index says {shape} {form.dtype}")
    return image


def decode_window(
    data: bytes | memoryview, form: Form, height: int, width: int, window: Window, scratch: Callable[[int], Array]
) -> Region:
    """Decode as little of a record as contains the window. Pixels equal those of decoding the whole at that scale.

    `scratch` returns flat uint8 memory of at least a size, which the result may use.

    Raises:
        CodecError: if the bytes are damaged, or have an image of another size.
    """
    if not form.jpegs:
        return Region(decode_record(data, form, height, width))
    jpeg, top, left, jpeg_height, jpeg_width = _cut_to_window(data, height, width, window)
    shrink = window.shrink if max(jpeg_height, jpeg_width) > LEAST_SHRUNK else 1
    size = -(-jpeg_height // shrink), -(-jpeg_width // shrink)
    pixels = decode_jpeg_into(scratch, jpeg, size, gray=form.channels == 1, fast=window.fast)
    return Region(pixels, top, left, shrink)


def _cut_to_window(data: bytes | memoryview, height: int, width: int, window: Window) -> Cut:
    """Return a JPEG that contains a window of a `height` x `width` JPEG: the smallest possible cut, or else the whole."""
    found = None
    if (window.height, window.width) != (height, width):
        found = cut_jpeg(data, *window[:4], of=(height, width), exact=not window.fast)
    if found is None and jpeg_size(data) != (height, width):
        raise CodecError(f"a jpeg record holds {jpeg_size(data)} pixels, the index says {(height, width)}")
    return found or Cut(np.frombuffer(data, np.uint8), 0, 0, height, width)


def _decode_png(data: bytes | memoryview, form: Form) -> Array:
    flags = cv2.IMREAD_UNCHANGED if form.channels == 1 else cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if len(data) else None
    if image is None:
        raise CodecError("damaged PNG")
    return image if image.ndim == 3 else image[:, :, None]
