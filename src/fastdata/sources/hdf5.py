"""HDF5: a dataset of pixels, or of encoded files, and its labels beside it. Needs h5py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import CodecError, MissingExtraError, PrepError
from fastdata.sources.archive import Chosen, Folder, Item, Kind, as_file, held, in_order, shares, unreadable
from fastdata.sources.inputs import SourceList
from fastdata.sources.labels import Value, text_label
from fastdata.sources.options import NO_LABELS

__all__ = ["KIND"]

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
LABELS = ("labels", "label", "targets", "target", "y")
CACHE_BYTES = 64 << 20  # a chunk may hold many images


def _takes(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in ENDINGS


def _inside(folder: Folder) -> list[Path]:
    return []  # such files hold anything: which one is meant has to be said


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py") from error
    return h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)


def _inputs(root: Path, files: list[Path], chosen: Chosen) -> SourceList:
    items, labels, by = list[Item](), list[Value](), ""
    for path in files:
        try:
            with _open(path) as file:
                data, name = _images(file, path, chosen.key), str(path.relative_to(root))
                place = "hdf5", name, data.name.strip("/")
                sizes = shares(path.stat().st_size, len(data))
                items += [(f"{name}/{k:06d}", sizes[k], "", (*place, k)) for k in range(len(data))]
                found, by = _labels(data, path, chosen.label)
                labels += found
        except (OSError, RuntimeError, KeyError) as error:  # what h5py raises of a damaged file
            raise unreadable(path, error) from error
    return in_order(root, items, labels, by=by, sure=bool(chosen.label))


def _images(file: Any, path: Path, key: str) -> Any:
    """The dataset that is named, or the only one that may be meant."""
    if key:
        found = file.get(key)
        if found is None or not hasattr(found, "shape"):
            raise PrepError(f"{path} has no dataset {key}; it has {', '.join(_names(file)) or 'none'}")
        if not _fits(found):
            raise PrepError(
                f"{path}::{key} is {_describe(found)}; images are uint8 or uint16 of [n, h, w], [n, h, w, 1 or 3] or "
                "[n, 1 or 3, h, w], or encoded files as uint8 of variable length [n]"
            )
        return found
    known = _names(file)
    fits = [name for name in known if _fits(file[name])]
    if len(fits) != 1:
        listed = ", ".join(f"{path}::{name}" for name in fits)
        what = (
            f"several datasets of images; name one: {listed}"
            if fits
            else f"no dataset of images, only {', '.join(known) or 'none'}"
        )
        raise PrepError(f"{path} has {what}")
    return file[fits[0]]


def _names(file: Any) -> list[str]:
    """All datasets."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if hasattr(item, "shape") else None)
    return found


def _describe(data: Any) -> str:
    return f"{data.dtype} of {list(data.shape) if data.shape is not None else 'nothing'}"


def _encoded(data: Any) -> bool:
    import h5py

    return bool(h5py.check_vlen_dtype(data.dtype) == np.uint8)


def _fits(data: Any) -> bool:
    shape = data.shape
    if shape is None:
        return False
    if _encoded(data):
        return len(shape) == 1
    channels = len(shape) == 3 or (len(shape) == 4 and (shape[3] in (1, 3) or shape[1] in (1, 3)))
    return bool(data.dtype.kind == "u" and data.dtype.itemsize <= 2 and channels and min(shape[1:]) > 0)


def _labels(data: Any, path: Path, wanted: str) -> tuple[list[Value], str]:
    """Of the dataset beside it that is wanted, or has one of the usual names, or is called y where the images are x; and what it
    is."""
    if wanted == NO_LABELS:
        return [None] * len(data), ""
    own = data.name.rpartition("/")[2]
    names = [own.replace(a, b) for a, b in (("images", "labels"), ("image", "label"))]
    names += [re.sub(r"(?<![a-zA-Z])[xX](?![a-zA-Z])", y, own) for y in "yY"]
    for name in [wanted] if wanted else [*(name for name in names if name != own), *LABELS]:
        found = data.parent.get(name)
        if found is not None and getattr(found, "shape", None):
            if len(found) != len(data):
                raise PrepError(f"{path}: {name} has {len(found)} labels, {own} {len(data)} images")
            return _values(np.asarray(found[()]), f"{path}::{name}"), f"{path.name}::{name}"
    if wanted:
        raise PrepError(f"--label-column {wanted}: {path} has no such dataset beside {own}; it has {', '.join(_names(data.file))}")
    return [None] * len(data), ""


def _values(found: Any, what: str) -> list[Value]:
    if found.dtype.kind in "OSU":
        texts = [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in found.reshape(-1)]
        if len(texts) == len(found) and all(isinstance(text, str) for text in texts):
            return [text_label(text) for text in texts]
    elif found.dtype.kind in "biu" and found.size == len(found):
        return [int(value) for value in found.reshape(-1).tolist()]
    elif found.dtype.kind in "biuf" and found.size:
        return [tuple(row) for row in found.reshape(len(found), -1).astype(np.float64).tolist()]
    raise PrepError(
        f"{what} holds {found.dtype} of {list(found.shape)}: labels are whole numbers, floats or texts, a row for each image"
    )


def _read(path: Path, name: str, index: int) -> bytes:
    try:
        data = held(path, _open)[name]
        found = np.asarray(data[index])
        if found.ndim == 1 or _encoded(data):
            return found.astype(np.uint8).tobytes()
    except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    if found.ndim == 3 and found.shape[2] not in (1, 3):
        found = found.transpose(1, 2, 0)
    return as_file(found[..., 0] if found.shape[2:] == (1,) else found)


KIND = Kind("hdf5", _takes, _inside, _inputs, _read, has_columns=True)
