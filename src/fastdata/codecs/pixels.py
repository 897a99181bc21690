"""The codecs of records: one image as stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np

from fastdata.codecs.jpeg_crop import LEAST_SHRUNK, Region, Window, jpeg_batches
from fastdata.codecs.jpeg_grid import decode_jpeg, decode_jpeg_into, encode_jpeg, jpeg_size
from fastdata.errors import CodecError
from fastdata.store.manifest import Form

__all__ = ["CODECS", "Codec", "Region", "Window", "decode_record", "decode_window", "encode_record"]

Array = np.ndarray[Any, np.dtype[Any]]
Data = bytes | memoryview


class Codec(NamedTuple):
    """How an image is stored.

    Attributes:
        encode: makes a record of RGB [H, W, 3] or grey [H, W], with a JPEG quality.
        decode: makes [H, W, C] of a record, its form, and the height and width that it should have.
        extension: of a record as an image file; "": it is none, and is exported as PNG.
        bits: the most for each channel: 8 for uint8, 16 for uint16 too.
        jpegs: whether records are JPEGs, of which a window is decoded alone if they are on the restart grid.
    """

    encode: Callable[[Array, int], bytes]
    decode: Callable[[Data, Form, int, int], Array]
    extension: str
    bits: int = 16
    jpegs: bool = False


def encode_record(image: Array, codec: str, *, quality: int = 90) -> bytes:
    """Encode RGB [H, W, 3] or grey [H, W], uint8 or uint16, as a record."""
    return CODECS[codec].encode(image, quality)


def decode_record(data: Data, form: Form, height: int, width: int) -> Array:
    """Decode a record to [H, W, C] of the format's dtype: read-only, and a view of `data` where that saves a copy.

    Raises:
        CodecError: if the bytes are damaged, or have an image of another size.
    """
    image, shape = CODECS[form.codec].decode(data, form, height, width), (height, width, form.channels)
    if image.shape != shape or image.dtype != form.dtype:
        raise CodecError(f"a {form.codec} record holds {image.shape} {image.dtype}, the index says {shape} {form.dtype}")
    return image


def decode_window(data: Data, form: Form, height: int, width: int, window: Window, scratch: Callable[[int], Array]) -> Region:
    """Decode as little of a record as contains the window. Pixels equal those of decoding the whole at that scale.

    `scratch` returns flat uint8 memory of at least a size, which the result may use.

    Raises:
        CodecError: if the bytes are damaged, or have an image of another size.
    """
    if not CODECS[form.codec].jpegs:
        return Region(decode_record(data, form, height, width))
    gray = form.channels == 1
    batches, _ = jpeg_batches([data], [(height, width)], [window])
    if batches:
        ((_, region),) = batches[0].decode(batches[0].join(), gray=gray, scratch=scratch)
        return region
    _check_size(form.codec, jpeg_size(data), height, width)
    shrink = window.shrink if max(height, width) > LEAST_SHRUNK else 1
    size = -(-height // shrink), -(-width // shrink)
    return Region(decode_jpeg_into(scratch, data, size, gray=gray, fast=window.fast), shrink=shrink)


def _check_size(codec: str, found: tuple[int, int], height: int, width: int) -> None:
    """Raise CodecError if a header says another size. Before decoding, since damage may ask for gigabytes."""
    if found != (height, width):
        raise CodecError(f"a {codec} record holds {found} pixels, the index says {(height, width)}")


def _encode_jpeg(image: Array, quality: int) -> bytes:
    return encode_jpeg(image, quality=quality)


def _decode_jpeg(data: Data, form: Form, height: int, width: int) -> Array:
    _check_size(form.codec, jpeg_size(data), height, width)
    return decode_jpeg(data, gray=form.channels == 1)


def _encode_png(image: Array, quality: int) -> bytes:
    ok, data = cv2.imencode(".png", image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not ok:
        raise CodecError(f"OpenCV could not encode {image.shape} pixels as PNG", "unencodable")
    return data.tobytes()


def _decode_png(data: Data, form: Form, height: int, width: int) -> Array:
    _check_size(form.codec, (int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")), height, width)
    flags = cv2.IMREAD_UNCHANGED if form.channels == 1 else cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise CodecError("damaged PNG")
    return image if image.ndim == 3 else image[:, :, None]


def _encode_raw(image: Array, quality: int) -> bytes:
    return np.ascontiguousarray(image, image.dtype.newbyteorder("<")).tobytes()


def _decode_raw(data: Data, form: Form, height: int, width: int) -> Array:
    dtype, shape = np.dtype(form.dtype).newbyteorder("<"), (height, width, form.channels)
    if len(data) != form.nbytes(height * width):
        raise CodecError(f"a raw record of {len(data)} bytes does not hold {shape} {form.dtype}")
    return np.frombuffer(data, dtype).reshape(shape)


JPEG = Codec(_encode_jpeg, _decode_jpeg, ".jpg", bits=8, jpegs=True)
CODECS = {  # images/options.py lists the names, so that `--help` need not import this
    "jpeg": JPEG,  # on the restart grid
    "original": JPEG,  # that, or an unchanged source JPEG of any layout that libjpeg decodes
    "png": Codec(_encode_png, _decode_png, ".png"),
    "rgb": Codec(_encode_raw, _decode_raw, ""),  # [H, W, C] in C order, little-endian; samples.npy has the size
}
