"""HDF5 files: a dataset of pixels or encoded images, and a dataset of labels next to it. Needs h5py."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fastdata.errors import CodecError, PrepError, needs
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Item, Kind, Selection, ends_in, even_sizes, make_list, open_once, to_png, unreadable
from fastdata.sources.fields import field_error, make_column
from fastdata.sources.inputs import SourceList
from fastdata.sources.labels import Value, text_label
from fastdata.sources.options import NO_LABELS
from fastdata.sources.packed import Packed
from fastdata.store.column import Column

__all__ = ["KIND"]

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
LABELS = ("labels", "label", "targets", "target", "y")
CACHE_BYTES = 64 << 20  # a chunk may hold many images


def _open(path: AnyPath) -> Any:
    with needs("h5py"):
        import h5py
    return h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    items, labels, by = Packed[Item](), Packed[Value](), ""
    for path in files:
        try:
            with _open(path) as file:
                images, name = _images(file, path, selection.key), str(path.relative_to(root))
                place = "hdf5", name, images.name.strip("/")
                sizes = even_sizes(path, len(images))
                items.extend((f"{name}/{k:06d}", sizes[k], "", (*place, k)) for k in range(len(images)))
                values, by = _labels(images, path, selection.label)
                labels.extend(values)
        except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:  # h5py raises these for a damaged file
            raise unreadable(path, error) from error
    return make_list(root, items, labels, by=by, sure=bool(selection.label))


def _images(file: Any, path: AnyPath, key: str) -> Any:
    """Return the dataset `key`, or the only dataset that holds images."""
    names = _dataset_names(file)
    if key:
        data = file.get(key)
        if data is None or not hasattr(data, "shape"):
            raise PrepError(f"{path} has no dataset {key}; it has {', '.join(names) or 'none'}")
        if not _holds_images(data):
            shape = "nothing" if data.shape is None else list(data.shape)
            raise PrepError(
                f"{path}::{key} is {data.dtype} of {shape}; images are uint8 or uint16 of [n, h, w], [n, h, w, 1 or 3] or "
                "[n, 1 or 3, h, w], or encoded files as uint8 of variable length [n]"
            )
        return data
    fits = [name for name in names if _holds_images(file[name])]
    if len(fits) > 1:
        raise PrepError(f"{path} has several datasets of images; name one: {', '.join(f'{path}::{name}' for name in fits)}")
    if not fits:
        raise PrepError(f"{path} has no dataset of images, only {', '.join(names) or 'none'}")
    return file[fits[0]]


def _dataset_names(file: Any) -> list[str]:
    names: list[str | bytes] = []  # bytes: no UTF-8
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
    for name in names:
        if isinstance(name, bytes):
            raise PrepError(f"{file.filename}: the name of the dataset {name!r} is not UTF-8: rename it")
    return [str(name) for name in names]


def _is_encoded(data: Any) -> bool:
    import h5py

    return bool(h5py.check_vlen_dtype(data.dtype) == np.uint8)


def _holds_images(data: Any) -> bool:
    shape = data.shape
    if shape is None:
        return False
    if _is_encoded(data):
        return len(shape) == 1
    channels = len(shape) == 3 or (len(shape) == 4 and (shape[3] in (1, 3) or shape[1] in (1, 3)))
    return bool(data.dtype.kind == "u" and data.dtype.itemsize <= 2 and channels and min(shape[1:]) > 0)


def _labels(images: Any, path: AnyPath, wanted: str) -> tuple[list[Value], str]:
    """Return the labels and the name of their dataset, which lies next to the images.

    The dataset is the one called `wanted`; or one whose name follows from that of the images, such as y for x; or one with a usual
    name. The labels are None if there is no such dataset.
    """
    if wanted == NO_LABELS:
        return [None] * len(images), ""
    own = images.name.rpartition("/")[2]
    names = [own.replace(a, b) for a, b in (("images", "labels"), ("image", "label"))]
    names += [re.sub(r"(?<![a-zA-Z])[xX](?![a-zA-Z])", y, own) for y in "yY"]
    for name in [wanted] if wanted else [*(name for name in names if name != own), *LABELS]:
        labels = images.parent.get(name)
        if labels is not None and getattr(labels, "shape", None):
            if len(labels) != len(images):
                raise PrepError(f"{path}: {name} has {len(labels)} labels, {own} {len(images)} images")
            return _values(np.asarray(labels[()]), f"{path}::{name}"), f"{path.name}::{name}"
    if wanted:
        known = ", ".join(_dataset_names(images.file))
        raise PrepError(f"--label-column {wanted}: {path} has no such dataset next to {own}; it has {known}")
    return [None] * len(images), ""


def _values(labels: Any, name: str) -> list[Value]:
    if labels.dtype.kind in "OSU":
        texts = [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in labels.reshape(-1)]
        if len(texts) == len(labels) and all(isinstance(text, str) for text in texts):
            return [text_label(text) for text in texts]
    elif labels.dtype.kind in "biu" and labels.size == len(labels):
        return [int(value) for value in labels.reshape(-1).tolist()]
    elif labels.dtype.kind in "biuf" and labels.size:
        return [tuple(row) for row in labels.reshape(len(labels), -1).astype(np.float64).tolist()]
    raise PrepError(
        f"{name} holds {labels.dtype} of {list(labels.shape)}: labels are whole numbers, floats or texts, a row for each image"
    )


def _read(path: AnyPath, name: str, index: int) -> bytes:
    try:
        data = open_once(path, _open)[name]
        image = np.asarray(data[index])
        if image.ndim == 1 or _is_encoded(data):
            return image.astype(np.uint8).tobytes()
    except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    if image.ndim == 3 and image.shape[2] not in (1, 3):
        image = image.transpose(1, 2, 0)
    return to_png(image[..., 0] if image.shape[2:] == (1,) else image)


def _column(path: AnyPath, name: str, images: str, _: int) -> Column:
    import h5py

    file = open_once(path, _open)
    data = _beside(file[images], name)
    if data is None or not getattr(data, "shape", None) or len(data) != len(file[images]):
        what = "no such dataset" if data is None else "such a dataset, but of another length than the images,"
        raise field_error(name, f"{path} has {what} next to {images}; it has {', '.join(_dataset_names(file))}")
    if h5py.check_string_dtype(data.dtype) is not None and data.ndim == 1:
        return make_column(name, "text")
    items = h5py.check_vlen_dtype(data.dtype)
    if items is not None and data.ndim == 1:
        return make_column(name, str(items), many=True)
    return make_column(name, data.dtype.name, data.shape[1:])


def _beside(images: Any, name: str) -> Any:
    return images.parent.get(name)


def _cell(path: AnyPath, name: str, images: str, index: int) -> Any:
    try:
        data = _beside(open_once(path, _open)[images], name)
        value = data[index]
    except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    return value.decode() if isinstance(value, bytes) else value


KIND = Kind(
    "hdf5", ends_in(*ENDINGS), _inputs, _read, has_columns=True, column=_column, cell=_cell
)  # not in folders: such files may hold anything, so they are named
