"""CIFAR's python batches: pickles of a dictionary of pixels and labels. Only what these hold is unpickled; no code runs."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.sources.archive import Chosen, Folder, Item, Kind, as_file, held, in_order, shares, unreadable
from fastdata.sources.inputs import SourceList, splits_error

__all__ = ["KIND", "load_batch"]

Array = np.ndarray[Any, np.dtype[Any]]

BATCH = re.compile(r"data_batch_\d+|test_batch")
SIDE = 32
NAMES = (("batches.meta", "label_names"), ("meta", "fine_label_names"))
LABELS = ("labels", "fine_labels")


def _takes(path: Path) -> bool:
    hundred = path.name in ("train", "test") and (path.parent / "meta").is_file()
    return path.is_file() and (BATCH.fullmatch(path.name) is not None or hundred)


def _inside(folder: Folder) -> list[Path]:
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


def _inputs(root: Path, files: list[Path], chosen: Chosen) -> SourceList:
    items, labels = list[Item](), list[int]()
    for path in files:
        batch, name = load_batch(path), str(path.relative_to(root))
        count = len(batch.pixels)
        sizes = shares(path.stat().st_size, count)
        for k in range(count):
            items.append((f"{name}/{k:05d}{'-' * bool(batch.files[k])}{batch.files[k]}", sizes[k], "", ("cifar", name, k)))
        labels += batch.labels
    return in_order(root, items, labels, _names(files[0].parent), by="the batches")


def _names(folder: Path) -> list[str]:
    """Of the classes, from the file that lies beside the batches."""
    for file, key in NAMES:
        if (folder / file).is_file():
            found = _load(folder / file).get(key)
            if not isinstance(found, list) or not all(isinstance(name, str | bytes) for name in found):
                raise PrepError(f"{folder / file} has no list of names as {key!r}; copy it again, or remove it to do without")
            return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in found]
    return []


class _Batch(NamedTuple):
    """What a file holds. pixels: uint8 [n, 3, 32, 32]."""

    pixels: Array
    labels: list[int]
    files: list[str]

    def close(self) -> None:
        """There is nothing to close."""


def load_batch(path: Path) -> _Batch:
    """Read a batch.

    Raises:
        PrepError: it is none, is damaged, or asks for code to be run.
    """
    found = _load(path)
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIDE * SIDE:
        what = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise PrepError(f"{path} is no CIFAR batch: data is {what}, not uint8 [n, 3072]")
    labels = next((found[key] for key in LABELS if key in found), [-1] * len(data))
    names = found.get("filenames", [""] * len(data))
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    for what, values, kind in (("labels", labels, int), ("names", names, str | bytes)):
        if not isinstance(values, list) or len(values) != len(data) or not all(isinstance(value, kind) for value in values):
            raise PrepError(f"{path} is no CIFAR batch: it has {len(data)} images, but its {what} are no list of that many")
    texts = [name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name for name in names]
    return _Batch(data.reshape(-1, 3, SIDE, SIDE), labels, texts)


def _load(path: Path) -> dict[str, Any]:
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError as error:
        raise unreadable(path, error) from error
    except _Refused as error:
        raise PrepError(f"{path} asks for {error}, which is in no CIFAR file and might run code; it was not run") from None
    except Exception as error:  # noqa: BLE001  a damaged pickle raises anything
        raise PrepError(f"{path} is no CIFAR batch, or damaged: {type(error).__name__}: {error}") from None
    if not isinstance(found, dict):
        raise PrepError(f"{path} is no CIFAR batch: it holds a {type(found).__name__}, not a dictionary")
    plain = {k: v.pixels if isinstance(v, _Array) else v for k, v in found.items()}
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in plain.items()}


class _Refused(Exception):
    """What only a pickle with code in it asks for."""


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
    """An array, in place of numpy's, whose own would believe what a pickle says."""

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
    """How Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"the encoding {encoding}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Of arrays of numbers, and of what needs no name. Even these few names stand for functions of ours, made anew each time:
    a pickle may change the attributes of what it was given."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full == "numpy.ndarray":
            return "ndarray"
        if full not in ALLOWED:
            raise _Refused(f"{module}.{name}")
        return lambda *given: ALLOWED[full](*given)


ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.numeric._frombuffer": _frombuffer,
    "numpy.dtype": _Type,
    "_codecs.encode": _encode,
}


def _read(path: Path, index: int) -> bytes:
    batch = held(path, load_batch)
    if index >= len(batch.pixels):
        raise CodecError(f"the archive holds {len(batch.pixels)} images now", "truncated")
    return as_file(batch.pixels[index].transpose(1, 2, 0))


KIND = Kind("cifar", _takes, _inside, _inputs, _read)
