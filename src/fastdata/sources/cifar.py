"""CIFAR's Python batches: pickles of a dictionary of pixels and labels. Only plain data is unpickled; no code runs."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Folder, Item, Kind, Selection, even_sizes, make_list, open_once, to_png, unreadable
from fastdata.sources.inputs import SourceList, splits_error

__all__ = ["KIND", "load_batch"]

Array = np.ndarray[Any, np.dtype[Any]]

BATCH = re.compile(r"data_batch_\d+|test_batch")
SIDE = 32
NAMES = (("batches.meta", "label_names"), ("meta", "fine_label_names"))
LABELS = ("labels", "fine_labels")


def _takes(path: AnyPath) -> bool:
    hundred = path.name in ("train", "test") and (path.parent / "meta").is_file()
    return path.is_file() and (BATCH.fullmatch(path.name) is not None or hundred)


def _inside(folder: Folder) -> list[AnyPath]:
    path = folder.path
    ten = [name for name in folder.files if re.fullmatch(r"data_batch_\d+", name)]
    splits = {"train": str(path / "data_batch_*")} if ten else {}
    tests = [name for name in folder.files if name == "test_batch"]
    if not ten and not tests and "meta" in folder.files:
        ten = [name for name in folder.files if name == "train"]
        splits = {"train": str(path / "train")} if ten else {}
        tests = [name for name in folder.files if name == "test"]
    if ten and tests:
        raise splits_error(path, {**splits, "test": str(path / tests[0])})
    return [path / name for name in ten or tests]


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    items, labels = list[Item](), list[int]()
    for path in files:
        batch, name = load_batch(path), str(path.relative_to(root))
        sizes = even_sizes(path, len(batch.files))
        for k, file in enumerate(batch.files):
            items.append((f"{name}/{k:05d}{'-' * bool(file)}{file}", sizes[k], "", ("cifar", name, k)))
        labels += batch.labels
    return make_list(root, items, labels, _class_names(files[0].parent), by="the batches")


def _class_names(folder: AnyPath) -> list[str]:
    """Read the names of the classes from the file next to the batches, if there is one."""
    for file, key in NAMES:
        if (folder / file).is_file():
            names = _load(folder / file).get(key)
            if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
                raise PrepError(f"{folder / file} has no list of names as {key!r}; copy it again, or remove it to do without")
            return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
    return []


class _Batch(NamedTuple):
    """The contents of a file. pixels: uint8 [n, 3, 32, 32]."""

    pixels: Array
    labels: list[int]
    files: list[str]

    def close(self) -> None:
        """Do nothing: the batch is in memory."""


def load_batch(path: AnyPath) -> _Batch:
    """Read a batch.

    Raises:
        PrepError: the file is not a CIFAR batch, is damaged, or asks to run code.
    """
    entries = _load(path)
    data = entries.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIDE * SIDE:
        what = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise PrepError(f"{path} is not a CIFAR batch: data is {what}, not uint8 [n, 3072]")
    labels = next((entries[key] for key in LABELS if key in entries), [-1] * len(data))
    names = entries.get("filenames", [""] * len(data))
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    for what, values, kind in (("labels", labels, int), ("names", names, str | bytes)):
        if not isinstance(values, list) or len(values) != len(data) or not all(isinstance(value, kind) for value in values):
            raise PrepError(f"{path} is not a CIFAR batch: it has {len(data)} images, but no list of as many {what}")
    files = [name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name for name in names]
    return _Batch(data.reshape(-1, 3, SIDE, SIDE), labels, files)


def _load(path: AnyPath) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        _check_numbers(data)
        loaded = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except OSError as error:
        raise unreadable(path, error) from error
    except _Refused as error:
        raise PrepError(f"{path} asks for {error}, which no CIFAR file contains and which might run code; it was not run") from None
    except Exception as error:  # noqa: BLE001  a damaged pickle may raise anything
        raise PrepError(f"{path} is not a CIFAR batch, or damaged: {type(error).__name__}: {error}") from None
    if not isinstance(loaded, dict):
        raise PrepError(f"{path} is not a CIFAR batch: it holds a {type(loaded).__name__}, not a dictionary")
    plain = {k: v.pixels if isinstance(v, _Array) else v for k, v in loaded.items()}
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in plain.items()}


def _check_numbers(data: bytes) -> None:
    """Refuse a pickle that gives an object a number beyond its own length: the unpickler makes a table as large as the number."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name.endswith("PUT") and (argument or 0) > len(data):
            raise ValueError(f"it has no object of the number {argument}")


class _Refused(Exception):
    """The pickle asks for something that no CIFAR batch contains."""


class _Type:
    """A number type, in place of numpy's."""

    def __init__(self, name: str | bytes, _align: object = False, _copy: object = True) -> None:
        text = name.decode("latin1") if isinstance(name, bytes) else str(name)
        if not re.fullmatch(r"[|<>=]?[biu][1248]", text):
            raise _Refused(f"an array of {text}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[2:] != (None, None, None, -1, -1, 0):
            raise _Refused("an array of parts")
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else str(state[1])
        self.dtype = np.dtype(order.replace("|", "=") + self.dtype.str[1:])


class _Array:
    """An array, in place of numpy's, which would trust the pickle."""

    pixels: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        self.pixels = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _reconstruct(_kind: object, _shape: object, _type: object) -> _Array:
    return _Array()


def _frombuffer(data: bytes, kind: _Type, shape: tuple[int, ...], order: str, _axes: object = None) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", data))
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Decode bytes as Python 3 pickles them for Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"the encoding {encoding}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Loads numeric arrays and what needs no imported name.

    The few allowed names map to functions of this module, wrapped anew each time: a pickle may change the attributes of what
    `find_class` returns.
    """

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full == "numpy.ndarray":
            return "ndarray"
        if full not in ALLOWED:
            raise _Refused(f"{module}.{name}")
        return lambda *args: ALLOWED[full](*args)


ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.numeric._frombuffer": _frombuffer,
    "numpy.dtype": _Type,
    "_codecs.encode": _encode,
}


def _read(path: AnyPath, index: int) -> bytes:
    batch = open_once(path, load_batch)
    if index >= len(batch.pixels):
        raise CodecError(f"the archive holds {len(batch.pixels)} images now", "truncated")
    return to_png(batch.pixels[index].transpose(1, 2, 0))


KIND = Kind("cifar", _takes, _inputs, _read, _inside)
