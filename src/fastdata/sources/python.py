"""Python sequences as SOURCE: an object of this process, or `module:function`, which every worker imports and calls.

Workers read items from a pickled copy of the sequence, if that is at most 64 MiB, or else through the process that has it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import cv2
import numpy as np
import xxhash

from fastdata.errors import CodecError, PrepError
from fastdata.sources.base import FUNCTION, function_of, open_once
from fastdata.sources.inputs import Field, Packed, Source, SourceList, not_stored
from fastdata.sources.labels import with_labels
from fastdata.sources.options import LABELS, NO_LABELS, PATHS, LabelOptions, choose_label
from fastdata.sources.tables import PathTable, with_columns
from fastdata.sources.urls import AnyPath, waiting
from fastdata.store.manifest import Labels
from fastdata.types import Array

SHARED = "sequence.python"  # the file that stands for a sequence of this process
SOCKET = "items"  # next to it
SAMPLED_ITEMS = 1000
MAX_PICKLE_BYTES = 64 << 20
IMAGES = ("image", "img", *PATHS, "bytes")  # the images come first


@dataclass
class Items:
    """Images by index, perhaps with labels."""

    source: Any  # a sequence of images, pairs or dicts
    labels: Sequence[Any] | None = None  # of the items, if known without reading them
    classes: Sequence[str] = ()  # names of the numbered classes, if known
    image_column: str = ""  # of each item; "": it has a usual name, or the item is the image
    label_column: str = ""
    unread: dict[Any, None] = field(default_factory=dict)  # names of other values of items

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> tuple[Any, Any]:
        """Return the image of an item, and its label or None."""
        item = self.source[index]
        if isinstance(item, Mapping):
            key = next((key for key in (self.image_column, *IMAGES) if key in item), None)
            if key is None:
                raise CodecError(f"item {index} of source has no image or img key, only {', '.join(map(str, item))}", "unsupported")
            labels = [self.label_column] if self.label_column else LABELS
            label = next((name for name in labels if name in item), None)
            self.unread |= dict.fromkeys(name for name in item if name not in (key, label, "path", "bytes"))
            return item if key in ("path", "bytes") else item[key], None if label is None else item[label]
        if not isinstance(item, tuple | list):
            return item, None
        if len(item) != 2:
            what = f"item {index} of source is a {type(item).__name__} of {len(item)} values"
            raise CodecError(f"{what}: give images, pairs of an image and a label, or dicts", "unsupported")
        return item[0], item[1]

    def image(self, index: int) -> bytes:
        """Return an image file with the pixels of an item. Raise CodecError or OSError if it is no image, or reading it fails."""
        try:
            return _image_file(self.read(index)[0], f"item {index} of source")
        except (CodecError, MemoryError):
            raise
        except OSError as error:  # of a class that another process may not know
            raise OSError(error.errno, error.strerror or str(error)) from error
        except Exception as error:
            raise CodecError(f"reading the item raised {type(error).__name__}: {error}", "item-error") from error

    def close(self) -> None:
        """Do nothing: the garbage collector closes a sequence."""


def _view(source: Any, label_column: str, fields: Sequence[str] = ()) -> Items:
    """Return a view of a sequence, a dataset of Hugging Face, a DataFrame, or torch's wrappers of these, without reading items."""
    kind = type(source)
    if (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", "Subset"):
        items, subset = _view(source.dataset, label_column, fields), copy(source)
        subset.dataset = items.source
        labels = items.labels and [items.labels[int(index)] for index in source.indices]
        return replace(items, source=subset, labels=labels)
    if (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", "ConcatDataset"):
        joined, each = copy(source), [_view(one, label_column, fields) for one in source.datasets]
        joined.datasets, classes = [items.source for items in each], each[0].classes
        if other := next((items.classes for items in each if items.classes != classes), None):
            raise PrepError(f"the joined datasets have different classes: {', '.join(classes[:5])}; and {', '.join(other[:5])}")
        return replace(each[0], source=joined, labels=None)
    features = getattr(source, "features", None)
    if isinstance(features, Mapping) and hasattr(source, "cast_column"):
        return _view_columns(source, [*features], features, label_column, fields)
    if kind.__name__ in ("DataFrame", "Table"):  # of pandas, polars or Arrow
        return _view_columns(source, [*getattr(source, "column_names", source.columns)], {}, label_column, fields)
    if kind.__name__ == "Series":
        source = _cells(source)
    if isinstance(source, Mapping):
        names = [repr(name) for name in source]
        raise TypeError(f"source is a {kind.__name__} of {', '.join(names)}: give one of them, such as source[{names[0]}]")
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise TypeError(f"source is a {kind.__name__}, but must be a path, or a sequence of images")
    listed, labels = getattr(source, "classes", None), None
    classes = list(map(str, listed)) if isinstance(listed, list | tuple) else []
    if hasattr(source, "dtype"):  # one array of images
        labels = [None] * len(source)
    elif kind.__module__.startswith("torchvision.") and getattr(source, "target_transform", None) is None:
        targets = getattr(source, "targets", ())
        labels = _cells(targets) if len(targets) == len(source) else None
    return Items(source, labels, classes, label_column=label_column)


def _view_columns(
    source: Any, names: Sequence[Any], features: Mapping[str, Any], label_column: str, fields: Sequence[str]
) -> Items:
    """View a DataFrame, or a Hugging Face dataset by its features; its images stay encoded unless a format is set."""
    if len({*names}) < len(names):
        raise PrepError(f"source has two columns of the same name: {', '.join(map(str, names))}")
    known = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    if (image := next((name for name in (*known, *IMAGES) if name in names), None)) is None:
        listed, hint = ", ".join(map(str, names)), "TableDataset reads a table without images as it is"
        raise PrepError(f"source has no column of images or paths ({', '.join(IMAGES)}), only {listed}; {hint}")
    label = choose_label(names, label_column, "source", [name for name, feature in features.items() if hasattr(feature, "names")])
    labels = _cells(source[label]) if label else [None] * len(source)
    classes = _categories(source[label]) if label else []
    if not features:
        cells = {name: _cells(source[name]) for name in names if name in (image, label, *fields)}
        rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
        return Items(rows, labels, classes, image, label, dict.fromkeys(name for name in names if name not in (image, label)))
    feature = features[image]
    if getattr(feature, "decode", False) and source.format["type"] is None:
        source = source.cast_column(image, type(feature)(decode=False))
    return Items(source, labels, list(getattr(features.get(label), "names", None) or ()), image, label)


def _categories(column: Any) -> list[str]:
    """Return the names of a categorical column of pandas in their order, whether they occur or not."""
    names = list(getattr(getattr(column, "cat", column), "categories", ()))
    return names if all(isinstance(name, str) for name in names) else []


def _cells(column: Any) -> list[Any]:
    """List the values, since pandas' `series[k]` goes by index, not by position. Missing values are None."""
    if hasattr(column, "isna"):
        return [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
    to_list = next((getattr(column, name) for name in ("tolist", "to_list", "to_pylist") if hasattr(column, name)), None)
    return list(column if to_list is None else to_list())


# Images


def _image_file(image: Any, what: str) -> bytes:
    """Return the bytes of an image file: the given ones, or an uncompressed PNG. Raise CodecError if it is no image."""
    if isinstance(image, Mapping) and ("bytes" in image or "path" in image):  # as Hugging Face's datasets have files
        image = image.get("path") if image.get("bytes") is None else image["bytes"]
    package = type(image).__module__.partition(".")[0]
    if package == "PIL":
        image = _from_pillow(image)
    if image is None:
        raise CodecError("the item holds no image", "no-image")
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    pixels = np.asarray(image)
    if pixels.ndim == 1 and pixels.dtype == np.uint8:  # the bytes of a file, as in HDF5
        return pixels.tobytes()
    if package == "torch" and pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype not in (np.uint8, np.uint16) or not fits or not pixels.size:
        kind = type(image).__name__ if pixels.dtype == object else f"{pixels.dtype} {list(pixels.shape)}"
        wanted = "an image is an array of uint8 or uint16 ([H, W], [H, W, 1], [H, W, 3], or a tensor [C, H, W]), a Pillow image,"
        wanted += " or the bytes or path of an image file; convert floats from 0 to 1: cast (x * 255).round() to uint8"
        raise CodecError(f"{what} is {kind}: {wanted}", "unsupported")
    native = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))
    native = native if native.ndim == 2 else cv2.cvtColor(native, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", native, [cv2.IMWRITE_PNG_COMPRESSION, 0])[1].tobytes()


def _from_pillow(image: Any) -> bytes | Array:
    """Return the file that a Pillow image was opened from, if it is not read yet; else a file of its pixels."""
    file = getattr(image, "fp", None)
    if file is not None and getattr(image, "tile", None) and image.tell() == 0:
        position = file.tell()
        file.seek(0)
        data: bytes = file.read()
        file.seek(position)
        return data
    if image.mode.startswith(("I", "F")):
        values: Array = np.asarray(image)
        deep = values.dtype.kind in "iu" and 0 <= values.min() <= values.max() <= np.iinfo(np.uint16).max
        return values.astype(np.uint16) if deep else values
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = image.convert({"PA": "RGBA", "RGBa": "RGBA", "La": "LA"}.get(image.mode, "RGB"))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=0, exif=image.info.get("exif") or b"", icc_profile=b"")
    return out.getvalue()


# Listing

_shared = dict[Path, tuple[Any, Any]]()  # by the files of `share`: sequences of this process, and their labels


def list_inputs(root: AnyPath, files: list[AnyPath], options: LabelOptions, fields: Sequence[Field], *_: Any) -> SourceList:
    """List the items. Their locators contain a checksum of the contents of some items."""
    (path,) = files
    match = function_of(path)
    source, labels = (_call(match, Path()), None) if match else _shared[Path(path)]
    fields = [field for field in fields if not field.ending]
    named = [field.path[0] for field in fields]
    items, names = _view(source, options.column, named), _categories(labels)
    count = len(items)
    own = [None] * count if options.no_labels else items.labels
    labels = own if labels is None else _cells(labels)
    sampled = {k * count // min(count, SAMPLED_ITEMS) for k in range(min(count, SAMPLED_ITEMS))}
    values, digest, total = list[Any](labels or ()), xxhash.xxh3_128(), 0
    cells = {name: Packed(_field(items.source, name, k) for k in range(count)) for name in named}
    for k in range(count) if labels is None else sorted(sampled):
        label, data = None, b""
        try:
            image, label = items.read(k)
            data = _image_file(image, f"item {k} of source") if k in sampled else b""
        except Exception as error:  # a worker will meet it again, and say more
            if isinstance(error, CodecError) and error.reason == "unsupported":
                raise PrepError(str(error)) from error
        digest.update(len(data).to_bytes(8, "little") + data)
        total += len(data)
        if labels is None:
            values.append(label)
    name, size = f"{path.name}@{digest.hexdigest()[:16]}", total // max(len(sampled), 1)
    each = Packed(Source(f"{k:06d}", -1, size, locator=("python", name, k)) for k in range(count))
    others = [str(name) for name in items.unread if name not in named]
    notes = (not_stored(others, "to store more, use --fields"),) if others else ()
    columns = {"": Packed(f"item {k}" for k in range(count)), **cells}
    table = PathTable(Path("source"), columns, "", texts=False, schema={})
    listed = with_columns(SourceList(root, Labels("none"), each, notes=notes), table, range(count), fields)
    return with_labels(listed, values, options, names=() if options.regression else names or items.classes, by="source")


def _field(source: Any, name: str, index: int) -> Any:
    """Return one value of a dict item, as JSON has it."""
    try:
        return json.loads(json.dumps(source[index][name], default=lambda value: value.tolist()))
    except Exception as error:
        raise PrepError(f"--fields {name}: item {index} of source gives no JSON value: {type(error).__name__}: {error}") from error


# Reading, in any process


def read(path: AnyPath, index: int) -> bytes:
    """Return the image file of an item."""
    with waiting():  # imports take a while
        items = open_once(path, _open, str(path))
    return bytes(items.image(index))


def _open(path: AnyPath) -> Any:
    name = path.name.partition("@")[0]
    try:
        if match := FUNCTION.fullmatch(name):
            return _view(_call(match, Path(path).parent), NO_LABELS)
        with Path(path).with_name(name).open("rb") as file:
            sys.path += [folder for folder in pickle.load(file) if folder not in sys.path]
            source = pickle.load(file)
        return _RemoteItems(Path(path).with_name(SOCKET)) if source is None else _view(source, NO_LABELS)
    except Exception as error:
        raise PrepError(f"a worker cannot open SOURCE: {type(error).__name__}: {error}; give SOURCE as module:function") from error


def _call(match: re.Match[str], folder: Path) -> Any:
    """Return the sequence of `module:function`. The module may lie in the folder."""
    if str(folder.absolute()) not in sys.path:
        sys.path.append(str(folder.absolute()))
    try:
        value: Any = resolve_name(match[0])
        if isinstance(value, type) or not hasattr(value, "__getitem__"):
            value = value()
    except Exception as error:
        found = f"{type(error).__name__}: {error}; looked in {folder.absolute()} and PYTHONPATH"
        raise PrepError(f"SOURCE {match[0]} is no path, and no module:function that returns a sequence: {found}") from error
    return value


# Sequences of this process


@contextmanager
def share(source: Any, out: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a path that workers of this machine can read SOURCE from, and the labels that are not in it."""
    if isinstance(source, str | os.PathLike):
        yield source, labels
        return
    items = _view(source, NO_LABELS)
    if out is None:
        raise ValueError("out is None, but a sequence of images has no name: name the store, such as out='data.fds'")
    if isinstance(labels, str | os.PathLike | Mapping | set | frozenset):
        raise ValueError(f"labels is {labels!s:.60}, but must be a sequence with one label for each image of SOURCE")
    labels = labels if labels is None or hasattr(labels, "__len__") else list(labels)
    if labels is not None and len(labels) != len(items):
        raise ValueError(f"labels has {len(labels)} entries for {len(items)} images; give one for each")
    data = _pickled(source)
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        path = Path(folder) / SHARED
        search = [entry or str(Path.cwd()) for entry in sys.path]
        path.write_bytes(pickle.dumps(search) + (data or pickle.dumps(None)))
        _shared[path] = source, labels
        try:
            with nullcontext() if data else _served(items, path.with_name(SOCKET)):
                yield path, None
        finally:
            del _shared[path]


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_PICKLE_BYTES:
            raise pickle.PicklingError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Refuses objects that another process would not read alike: definitions of the main script, and Pillow's images."""

    def reducer_override(self, value: Any) -> Any:
        if "__main__" in (getattr(value, "__module__", ""), type(value).__module__) or type(value).__module__.startswith("PIL."):
            raise pickle.PicklingError("not in another process")
        return NotImplemented


def _pickled(source: Any) -> bytes:
    """Return a sequence as a pickle, or b"" if it cannot be pickled or would be large."""
    file = _Limited()
    with suppress(Exception):  # objects raise nearly anything
        if getattr(source, "nbytes", 0) <= MAX_PICKLE_BYTES:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(source)
            return file.getvalue()
    return b""


@contextmanager
def _served(items: Items, path: Path) -> Iterator[None]:
    """Serve the items to other processes, one at a time, from threads here. path: of the socket, in a private folder."""
    lock, ended = threading.Lock(), threading.Event()

    def answer(connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # the other process has ended
            while True:
                index = connection.recv()
                try:
                    with lock:
                        reply: Any = items.image(index)
                except (CodecError, OSError, MemoryError) as error:
                    reply = error
                connection.send(reply)

    def accept() -> None:
        while connection := None if ended.is_set() else listener.accept():
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with Listener(str(path), "AF_UNIX", socket.SOMAXCONN) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield
        finally:
            ended.set()
            Client(str(path)).close()  # which ends the waiting for others
            accepting.join()


class _RemoteItems:
    """Items of another process."""

    def __init__(self, path: Path) -> None:
        self._connection = Client(str(path))

    def image(self, index: int) -> bytes:
        """Return the image file of an item, as `Items.image` does."""
        try:
            self._connection.send(index)
            with waiting():  # for the items of other workers
                reply: Any = self._connection.recv()
        except (OSError, EOFError) as error:
            raise PrepError(f"the process that reads SOURCE does not answer: {error}") from None
        if isinstance(reply, Exception):
            raise reply
        return bytes(reply)

    def close(self) -> None:
        self._connection.close()
