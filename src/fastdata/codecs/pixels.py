"""The codecs of records, as docs/format.md describes them: one image as stored bytes."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from fastdata.codecs.jpeg_crop import MIN_SHRUNK_SIDE, Region, Window, join_cells, jpeg_batches
from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg, jpeg_size
from fastdata.errors import CodecError
from fastdata.store.manifest import Form
from fastdata.types import Array

Data = bytes | memoryview

JPEGS = "jpeg", "original"  # codecs of 8 bits, of which a window is decoded alone if a record is on the restart grid
EXTENSIONS = {"jpeg": ".jpg", "original": ".jpg", "png": ".png"}  # of codecs whose records are image files


def encode_record(image: Array, codec: str, *, quality: int = 90) -> bytes:
    """Encode RGB [H, W, 3] or grey [H, W], uint8 or uint16, as a record."""
    if codec in JPEGS:
        return encode_jpeg(image, quality=quality)
    if codec == "rgb":
        return np.ascontiguousarray(image, image.dtype.newbyteorder("<")).tobytes()
    _, data = cv2.imencode(".png", image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return data.tobytes()


def decode_record(data: Data, form: Form, height: int, width: int) -> Array:
    """Decode a record to [H, W, C] of the form's dtype, perhaps a view of `data`. Raise CodecError if it is damaged."""
    shape, gray = (height, width, form.channels), form.channels == 1
    if form.codec == "rgb":
        if len(data) != form.nbytes(height * width):
            raise CodecError(f"a raw record of {len(data)} bytes does not hold {shape} {form.dtype}")
        return np.frombuffer(data, np.dtype(form.dtype).newbyteorder("<")).reshape(shape)
    _check_size(data, form.codec, height, width)
    if form.codec in JPEGS:
        image: Array | None = decode_jpeg(data, gray=gray)
    else:
        flags = cv2.IMREAD_UNCHANGED if gray else cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise CodecError("damaged PNG")
    image = image if image.ndim == 3 else image[:, :, None]
    if image.shape != shape or image.dtype != form.dtype:
        raise CodecError(f"a record of {form.codec} holds {image.shape} {image.dtype}, but the index says {shape} {form.dtype}")
    return image


def decode_window(data: Data, form: Form, height: int, width: int, window: Window, scratch: Callable[[int], Array]) -> Region:
    """Decode the least part of a record that contains the window. Pixels are as if the whole were decoded at the window's scale.

    `scratch(size)` returns flat uint8 memory, which the result may use. Raise CodecError if the record is damaged.
    """
    if form.codec not in JPEGS:
        return Region(decode_record(data, form, height, width))
    gray = form.channels == 1
    batches, _ = jpeg_batches([data], [(height, width)], [window])
    if batches:
        ((_, region),) = batches[0].decode(join_cells(batches[0].cells), gray=gray, scratch=scratch)
        return region
    _check_size(data, form.codec, height, width)
    shrink = window.shrink if max(height, width) > MIN_SHRUNK_SIDE else 1
    size = -(-height // shrink), -(-width // shrink)
    return Region(decode_jpeg_into(scratch, data, size, gray=gray, fast=window.fast), shrink=shrink)


def _check_size(data: Data, codec: str, height: int, width: int) -> None:
    """Raise CodecError if a header says another size. Call it before decoding, since a damaged header may ask for gigabytes."""
    found = jpeg_size(data) if codec in JPEGS else (int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big"))
    if found != (height, width):
        raise CodecError(f"a record of {codec} holds {found} pixels, but the index says {(height, width)}")
