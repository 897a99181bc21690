"""Images that are Python objects: they are written to one temporary file, which workers can read."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import xxhash

from fastdata.errors import CodecError, PrepError
from fastdata.sources.archive import Item, Kind, Selection, ends_in, make_list, read_range
from fastdata.sources.inputs import SourceList
from fastdata.sources.labels import Value
from fastdata.sources.urls import AnyPath

__all__ = ["KIND", "as_image_file", "is_sequence"]

Array = np.ndarray[Any, np.dtype[Any]]

ENDING = ".given"  # of the file: the images one after another, their sizes and labels as JSON, and the offset of the JSON
IMAGE_KEYS, LABEL_KEYS = ("image", "img"), ("label", "labels", "fine_label", "target")  # of samples that are dicts


def is_sequence(source: Any) -> bool:
    """Return whether an object may be a sequence of images: it has a length, and items by number."""
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping)


@contextmanager
def as_image_file(source: Any, labels: Any = None) -> Iterator[Path]:
    """Write the images and labels of a sequence to a temporary file, which is removed at the end of the context.

    Args:
        source: arrays, uint8 or uint16, [H, W], [H, W, 1] or [H, W, 3]; torch tensors, also [1 or 3, H, W]; Pillow images; or bytes
            of image files. Also (image, label) pairs, or dicts with `image` and `label`, as datasets gives them.
        labels: one for each image: the number or name of a class, or floats.

    Raises:
        PrepError: an item is not an image, or its label is of an unknown type.
        ValueError: the number of labels is not that of the images.
    """
    if labels is not None and len(labels) != len(source):
        raise ValueError(f"labels has {len(labels)} entries for {len(source)} images; give one for each")
    source, labels = (getattr(sequence, "iloc", sequence) for sequence in (source, labels))  # pandas: by place, not by its index
    sizes, values, digest = list[int](), list[Value](), xxhash.xxh3_128()
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        written = Path(folder) / "images"
        with written.open("wb") as file:
            for k in range(len(source)):
                image, label = _split_item(source[k], None if labels is None else labels[k], k)
                data = _encode(image, k)
                values.append(_value(label, k))
                sizes.append(file.write(data))
                digest.update(data)
            names = [str(name) for name in getattr(source, "classes", None) or ()]
            index = json.dumps({"sizes": sizes, "labels": values, "names": names}).encode()
            file.write(index + sum(sizes).to_bytes(8, "little"))
        digest.update(index)
        yield written.rename(written.with_name(digest.hexdigest() + ENDING))  # so the contents count for the plan's fingerprint


def _split_item(item: Any, label: Any, place: int) -> tuple[Any, Any]:
    """Return the image and the label of an item. A label that is passed takes precedence over the item's own."""
    if isinstance(item, dict):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            raise PrepError(f"item {place} of source has no {' or '.join(IMAGE_KEYS)}, only {', '.join(map(str, item))}")
        return image, next((item[key] for key in LABEL_KEYS if key in item), None) if label is None else label
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1] if label is None else label
    return item, label


def _encode(image: Any, place: int) -> bytes:
    """Return an image file with these pixels; bytes are returned as they are."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    package = type(image).__module__.partition(".")[0]
    if package == "PIL" and image.mode not in ("L", "RGB"):
        return _encode_pillow(image)
    pixels = np.asarray(image)
    if package == "torch" and pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype not in (np.uint8, np.uint16) or not fits or not pixels.size:
        found = f"{type(image).__name__!r}" if pixels.dtype == object else f"{pixels.dtype} {list(pixels.shape)}"
        raise PrepError(
            f"item {place} of source is {found}: an image is an array of uint8 or uint16, [H, W], [H, W, 1] or [H, W, 3], a Pillow "
            "image, or the bytes of an image file; convert floats from 0 to 1 with (x * 255).round().astype('uint8')"
        )
    return _to_png(np.ascontiguousarray(pixels))


def _encode_pillow(image: Any) -> bytes:
    """Encode an image that may have alpha, a palette, 1 bit or 16 bits."""
    file = io.BytesIO()
    try:
        image.save(file, "PNG")
    except (OSError, ValueError):  # PNG does not support the mode, such as CMYK
        return _to_png(np.asarray(image.convert("RGB")))
    return file.getvalue()


def _to_png(pixels: Array) -> bytes:
    """Encode uint8 or uint16 pixels, [H, W] or [H, W, 3], as an uncompressed PNG, without loss."""
    native = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    native = np.ascontiguousarray(native) if native.ndim == 2 else cv2.cvtColor(native, cv2.COLOR_RGB2BGR)
    ok, data = cv2.imencode(".png", native, [cv2.IMWRITE_PNG_COMPRESSION, 0])
    if not ok:
        raise CodecError(f"OpenCV could not write {pixels.shape} pixels as PNG", "undecodable")
    return data.tobytes()


def _value(label: Any, place: int) -> Value:
    if label is None or isinstance(label, str):
        return label
    array = np.asarray(label)
    if array.dtype.kind in "biuf" and array.ndim <= 1:
        value: Value = array.tolist()
        return value
    raise PrepError(f"the label of item {place} is a {type(label).__name__}: labels are whole numbers, names, or floats")


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    (path,) = files
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        file.seek(int.from_bytes(file.read(), "little"))
        index = json.loads(file.read()[:-8])
    items, start = list[Item](), 0
    for k, size in enumerate(index["sizes"]):
        items.append((f"{k:06d}", size, "", ("given", path.name, start, size)))
        start += size
    labels = [tuple(label) if isinstance(label, list) else label for label in index["labels"]]
    names = () if selection.regression else index["names"]
    return make_list(root, items, labels, names, by="the list", selection=replace(selection, label=selection.label or "label"))


KIND = Kind("given", ends_in(ENDING), _inputs, read_range)
