"""Images that are objects in Python: they go through one file, which workers can read, and which is gone afterwards."""

from __future__ import annotations

import io
import json
import numbers
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.archive import Chosen, Item, Kind, as_file, in_order, read_range
from fastdata.sources.inputs import SourceList
from fastdata.sources.labels import Value

__all__ = ["KIND", "as_image_file", "is_sequence"]

Array = np.ndarray[Any, np.dtype[Any]]

ENDING = ".given"  # of the file: the images, one behind another; what is said of them, as JSON; and where that begins
IMAGE_KEYS, LABEL_KEYS = ("image", "img"), ("label", "labels", "fine_label", "target")  # of samples that are dicts


def is_sequence(source: Any) -> bool:
    """Whether something in Python may be a sequence of images: it has a length, and items by number."""
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping)


@contextmanager
def as_image_file(source: Any, labels: Any = None) -> Iterator[Path]:
    """A file of the images of a sequence, and of their labels.

    Args:
        source: arrays, uint8 or uint16 [H, W], [H, W, 1], [H, W, 3] or [1 or 3, H, W] (of torch), images of Pillow's, or bytes of
            image files; or pairs of one and its label, or dicts of `image` and `label`, as datasets give.
        labels: one for each: a number or a name of its class, or floats.

    Raises:
        PrepError: an item is no image, or has no label.
    """
    if labels is not None and len(labels) != len(source):
        raise ValueError(f"labels has {len(labels)} entries for {len(source)} images; give one for each")
    sizes, values, digest = list[int](), list[Value](), xxhash.xxh3_128()
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        written = Path(folder) / "images"
        with written.open("wb") as file:
            for k in range(len(source)):
                image, label = _parts(source[k], None if labels is None else labels[k], k)
                data = _bytes(image, k)
                values.append(_value(label, k))
                sizes.append(file.write(data))
                digest.update(data)
            names = [str(name) for name in getattr(source, "classes", None) or ()]
            about = json.dumps({"sizes": sizes, "labels": values, "names": names}).encode()
            file.write(about + sum(sizes).to_bytes(8, "little"))
        digest.update(about)
        yield written.rename(written.with_name(digest.hexdigest() + ENDING))  # what it holds is a part of the plan's fingerprint


def _parts(item: Any, label: Any, place: int) -> tuple[Any, Any]:
    """The image and the label of an item."""
    if isinstance(item, dict):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            raise PrepError(f"item {place} of source has no {' or '.join(IMAGE_KEYS)}, only {', '.join(map(str, item))}")
        return image, next((item[key] for key in LABEL_KEYS if key in item), None) if label is None else label
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1] if label is None else label
    return item, label


def _bytes(image: Any, place: int) -> bytes:
    """An image file with these pixels."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if type(image).__module__.partition(".")[0] == "PIL":
        if image.mode not in ("L", "RGB"):
            return _png(image)
        image = np.asarray(image)
    pixels = np.asarray(image)
    if type(image).__module__.partition(".")[0] == "torch" and pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype not in (np.uint8, np.uint16) or not fits or not pixels.size:
        found = f"{type(image).__name__!r}" if pixels.dtype == object else f"{pixels.dtype} {list(pixels.shape)}"
        raise PrepError(
            f"item {place} of source is {found}: an image is an array of uint8 or uint16, [H, W], [H, W, 1] or [H, W, 3], an image "
            "of Pillow's, or the bytes of an image file; of floats from 0 to 1, give (x * 255).round().astype('uint8')"
        )
    return as_file(np.ascontiguousarray(pixels))


def _png(image: Any) -> bytes:
    """Alpha, palettes, one bit, 16 bits."""
    file = io.BytesIO()
    try:
        image.save(file, "PNG")
    except (OSError, ValueError):  # such as CMYK
        return as_file(np.asarray(image.convert("RGB")))
    return file.getvalue()


def _value(label: Any, place: int) -> Value:
    if label is None or isinstance(label, str):
        return label
    found = np.asarray(label)
    if found.ndim == 0 and isinstance(found.item(), bool | numbers.Integral):
        return int(found)
    if found.dtype.kind in "biuf" and found.ndim <= 1:
        return tuple(map(float, found.reshape(-1).tolist()))
    raise PrepError(f"the label of item {place} is a {type(label).__name__}: labels are whole numbers, names, or floats")


def _takes(path: Path) -> bool:
    return path.suffix == ENDING and path.is_file()


def _inputs(root: Path, files: list[Path], chosen: Chosen) -> SourceList:
    (path,) = files
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        file.seek(int.from_bytes(file.read(), "little"))
        about = json.loads(file.read()[:-8])
    items, start = list[Item](), 0
    for k, size in enumerate(about["sizes"]):
        items.append((f"{k:06d}", size, "", ("given", path.name, start, size)))
        start += size
    labels = [tuple(label) if isinstance(label, list) else label for label in about["labels"]]
    return in_order(root, items, labels, about["names"], by="the list", sure=True)


KIND = Kind("given", _takes, lambda folder: [], _inputs, read_range)
