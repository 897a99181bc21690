"""Datasets of MosaicML Streaming (MDS) and of LitData: a folder with index.json and the files of samples that it lists.

Files begin with the number of samples and the offset of each; a sample begins with the sizes of its cells. Neither package is
needed: they decode every cell, with torch, but workers want the bytes of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import CodecError, PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Folder, Item, Kind, Selection, make_list, read_range, to_png, unreadable
from fastdata.sources.inputs import SPLITS, SourceList, look, read_bytes, splits_error
from fastdata.sources.labels import Value, text_label
from fastdata.sources.notes import not_stored
from fastdata.sources.options import NO_LABELS
from fastdata.sources.packed import Packed

__all__ = ["KIND"]

INDEX = "index.json"
IMAGES = ("image", "img")  # the preferred names if several columns hold images
LABELS = ("label", "labels", "class", "cls", "target", "y")
FILES = ("jpeg", "png", "image")  # encodings that are image files
PIXELS = ("pil", "ndarray", "numpy")
PERHAPS = ("bytes", "file")  # encodings that are taken for image files if no other column is one
NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"} | {
    name: np.dtype(name).newbyteorder("<").str
    for name in "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
}
TEXTS = ("str", "text", "str_int", "str_float")
NUMPY_CODES = {4: "u1", 5: "<u2"}  # LitData's codes of the dtypes of images
MDS_CODES = {8: "u1", 16: "<u2"}


@dataclass(frozen=True)
class _File:
    """A file of samples. names, encodings, sizes: of the cells of a sample; -1 if each sample has its own size."""

    path: AnyPath
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]


def _index(path: AnyPath) -> dict[str, Any]:
    """Read index.json; return {} if it is from neither package."""
    try:
        index = json.loads(read_bytes(path / INDEX))
    except (OSError, ValueError, RecursionError):
        return {}
    known = isinstance(index, dict) and (isinstance(index.get("shards"), list) or {"chunks", "config"} <= index.keys())
    return index if known else {}


def _takes(path: AnyPath) -> bool:
    return path.is_dir() and bool(_index(path))


def _inside(folder: Folder) -> list[AnyPath]:
    splits = {name: str(folder.path / name) for name in folder.folders if name.lower() in SPLITS and _takes(folder.path / name)}
    if len(splits) > 1:
        raise splits_error(folder.path, splits)
    return []  # `_takes` recognizes the folder of a dataset


def _files(path: AnyPath) -> Iterator[_File]:
    index = _index(path)
    try:
        yield from (
            _mds_files(path, index["shards"]) if "shards" in index else _litdata_files(path, index["chunks"], index["config"])
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrepError(f"{path / INDEX} is damaged, or of a newer version: {type(error).__name__}: {error}") from None


def _mds_files(path: AnyPath, shards: list[Any]) -> Iterator[_File]:
    for shard in shards:
        _refuse_outside(path, shard["raw_data"]["basename"])
        if shard["format"] != "mds" or shard["version"] != 2:
            raise PrepError(f"{path} has shards of format {shard['format']}, version {shard['version']}: MDS 2 can be read")
        file = path / shard["raw_data"]["basename"]
        if shard["zip_data"] and not file.exists():
            raise PrepError(
                f"{path / shard['zip_data']['basename']} is compressed ({shard['compression']}): decompress the shards in place; "
                f"reading all of StreamingDataset(local={str(path)!r}) does so"
            )
        sizes = tuple(-1 if size is None else int(size) for size in shard["column_sizes"])
        yield _File(file, int(shard["samples"]), tuple(shard["column_names"]), tuple(shard["column_encodings"]), sizes)


def _litdata_files(path: AnyPath, chunks: list[Any], config: dict[str, Any]) -> Iterator[_File]:
    for what in ("compression", "encryption"):
        if config.get(what):
            raise PrepError(f"{path} has chunks with {what} ({config[what]}): write them without, optimize(..., {what}=None)")
    encodings = tuple(map(str, config["data_format"]))
    names = _names(json.loads(config["data_spec"])[1], len(encodings))
    for chunk in chunks:
        _refuse_outside(path, chunk["filename"])
        yield _File(path / chunk["filename"], int(chunk["chunk_size"]), names, encodings, (-1,) * len(encodings))


def _refuse_outside(path: AnyPath, name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise PrepError(f"{path / INDEX} lists {name}, which lies outside of its folder; only files below it are read")


def _names(spec: dict[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of the cells of a sample: the keys of a dict, or the positions in a tuple."""
    keys = json.loads(spec["context"]) if spec["type"] == "builtins.dict" else range(count)
    flat = len(keys) == count and all(child["type"] is None for child in spec["children_spec"])
    return tuple(map(str, keys if flat else range(count)))


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    items, labels, columns = Packed[Item](), Packed[Value](), None
    (path,) = files
    for file in _files(path):
        image, label = _columns(file, selection)
        if columns not in (None, (file.names, file.encodings)):
            raise PrepError(f"{file.path} has other columns than the files before it; prepare them separately")
        columns = file.names, file.encodings
        name = str(file.path.relative_to(root))
        try:
            for k, cells in enumerate(_samples(file)):
                offset, data = cells[image]
                items.append((f"{name}/{k:06d}", len(data), "", ("streamed", name, file.encodings[image], offset, len(data))))
                labels.append(None if label < 0 else _value(bytes(cells[label][1]), file.encodings[label]))
        except (OSError, ValueError) as error:
            raise unreadable(file.path, error) from None
    if columns is None:
        raise PrepError(f"{path / INDEX} lists no samples")
    others = [name for k, name in enumerate(file.names) if k not in (image, label)]
    stored = f"images come from {file.names[image]}" + (f", labels from {file.names[label]}" if label >= 0 else "")
    notes = (not_stored(others, stored),) if others else ()
    by = f"column {file.names[label]}" if label >= 0 else ""
    return make_list(root, items, labels, by=by, sure=bool(selection.label), notes=notes)


def _columns(file: _File, selection: Selection) -> tuple[int, int]:
    """Return the index of the image cell, and of the label cell; -1 if there is no label."""
    kinds = [encoding.partition(":")[0] for encoding in file.encodings]
    images = [k for k, kind in enumerate(kinds) if kind in FILES + PIXELS] or [k for k, kind in enumerate(kinds) if kind in PERHAPS]
    if len(images) > 1:
        images = [k for k in images if file.names[k] in IMAGES] or [k for k in images if kinds[k] in FILES] or images
    listed = ", ".join(f"{name} ({encoding})" for name, encoding in zip(file.names, file.encodings, strict=True))
    if len(images) != 1:
        raise PrepError(
            f"{file.path.parent}: one column of images (jpeg, png, pil, or an array of uint8) is needed; there are {listed}"
            + (". If there are several, the one called image is taken" if images else "")
        )
    if selection.label == NO_LABELS:
        return images[0], -1
    if selection.label and selection.label not in file.names:
        raise PrepError(f"--label-column {selection.label}: {file.path.parent} has no such column; it has {listed}")
    usable = [k for k, kind in enumerate(kinds) if kind in TEXTS or kind in NUMBERS]
    if selection.label:
        if (label := file.names.index(selection.label)) not in usable:
            raise PrepError(f"--label-column {selection.label}: it is {file.encodings[label]}, but labels are numbers or texts")
        return images[0], label
    named = [k for name in LABELS for k in usable if file.names[k] == name]
    pair = usable if len(file.names) == 2 and file.names[1] == "1" else []
    return images[0], next(iter([*named, *pair]), -1)


def _samples(file: _File) -> Iterator[list[tuple[int, memoryview]]]:
    """Yield the cells of each sample: the offset in the file, and the bytes.

    Raises:
        ValueError: the file is not as long as it says.
    """
    if look(file.path)[1] == "not-a-file":
        raise ValueError("it is no ordinary file")
    data = np.memmap(file.path, np.uint8, "r").data
    offsets = np.frombuffer(data[4 : 8 + 4 * file.samples], "<u4").tolist()
    if int.from_bytes(data[:4], "little") != file.samples or len(offsets) != file.samples + 1 or offsets[-1] > len(data):
        raise ValueError(f"it does not hold the {file.samples} samples that {INDEX} lists, or was cut short")
    for start, end in pairwise(offsets):
        yield _cells(data, start, end, file.sizes)


def _cells(data: memoryview, start: int, end: int, sizes: tuple[int, ...]) -> list[tuple[int, memoryview]]:
    own_sizes = np.frombuffer(data[start : start + 4 * sizes.count(-1)], "<u4").tolist()
    offset, cells = start + 4 * len(own_sizes), list[tuple[int, memoryview]]()
    remaining = iter(own_sizes)
    for size in (next(remaining) if size < 0 else size for size in sizes):
        cells.append((offset, data[offset : offset + size]))
        offset += size
    if offset > end:
        raise ValueError("a sample is larger than its place")
    return cells


def _value(data: bytes, encoding: str) -> Value:
    if encoding in NUMBERS:
        value = np.frombuffer(data, NUMBERS[encoding])[0].item()
        return (value,) if isinstance(value, float) else int(value)
    return (float(data),) if encoding == "str_float" else text_label(data.decode())


def _read(path: AnyPath, encoding: str, offset: int, size: int) -> bytes:
    data = read_range(path, offset, size)
    kind, _, details = encoding.partition(":")
    if kind not in PIXELS:
        return data
    try:
        return to_png({"pil": _pil, "ndarray": _mds_array, "numpy": _litdata_array}[kind](data, details))
    except (ValueError, IndexError, KeyError) as error:
        raise CodecError(f"a {encoding} of {size} bytes is no image: {error}", "undecodable") from None


def _pil(data: bytes, _: str) -> Any:
    width, height, length = np.frombuffer(data[:12], "<u4").tolist()
    mode = data[12 : 12 + length].decode()
    if mode not in ("L", "RGB"):
        raise CodecError(f"Pillow's mode {mode}: RGB and L can be read from pil; write others as png", "unsupported")
    return np.frombuffer(data[12 + length :], np.uint8).reshape((height, width, 3)[: 2 + (mode == "RGB")])


def _mds_array(data: bytes, details: str) -> Any:
    """Read pixels whose dtype and shape are in the encoding, or else before the data."""
    name, _, shape = details.partition(":")
    if not name:
        name, data = MDS_CODES[data[0]], data[1:]
    sides = tuple(map(int, shape.split(","))) if shape else ()
    if not sides:
        axes, width = data[0] >> 2, 1 << (data[0] & 3)
        sides, data = tuple(np.frombuffer(data[1 : 1 + axes * width], f"<u{width}").tolist()), data[1 + axes * width :]
    return _as_image(np.frombuffer(data, np.dtype(name).newbyteorder("<")).reshape(sides))


def _litdata_array(data: bytes, _: str) -> Any:
    code, axes = np.frombuffer(data[:8], "<u4").tolist()
    sides = np.frombuffer(data[8 : 8 + 4 * axes], "<u4").tolist()
    return _as_image(np.frombuffer(data[8 + 4 * axes :], NUMPY_CODES[code]).reshape(sides))


def _as_image(pixels: Any) -> Any:
    """Return pixels as [H, W] or [H, W, 3]; channels may come first."""
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3) and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype.kind != "u" or pixels.dtype.itemsize > 2 or pixels.shape[2:] not in ((), (3,)) or pixels.ndim < 2:
        raise ValueError(f"{pixels.dtype} of {list(pixels.shape)}")
    return pixels


KIND = Kind("streamed", _takes, _inputs, _read, _inside, has_columns=True)
