"""Datasets of MosaicML Streaming (MDS) and of LitData: a folder with index.json and the files of samples that it lists.

A file begins with the number of its samples and their offsets; a sample begins with the sizes of its values. Image files, numbers
and text are read directly. The two packages must decode all else: see docs/integrations.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import PrepError
from fastdata.sources.base import INDEX, ArchiveColumns, Table, list_tables, read_range
from fastdata.sources.files import look, read_json
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.options import LabelOptions, choose_label
from fastdata.sources.urls import AnyPath

IMAGES, FILES = ("jpeg", "png"), ("bytes", "file")  # encodings of images, and of files, which are images if no column is one
NUMBERS = "bool int int8 int16 int32 int64 uint8 uint16 uint32 uint64 float float16 float32 float64".split()
PAIR_LABEL = "1"  # the column of labels, where samples are pairs


class _StreamedFile(NamedTuple):
    name: str
    samples: int
    columns: dict[str, str]  # the encoding of each cell of a sample
    sizes: list[int]  # of the cells, in bytes; -1: each sample has its own


read = read_range


def read_index(path: AnyPath) -> dict[str, Any]:
    """Read index.json; return {} unless it is one of MDS or LitData."""
    index = read_json(path / INDEX)
    known = isinstance(index, dict) and (isinstance(index.get("shards"), list) or {"chunks", "config"} <= index.keys())
    return index if known else {}


def _files(path: AnyPath) -> Iterator[_StreamedFile]:
    index = read_index(path)
    for shard in index.get("shards", ()):
        if (shard["format"], shard["version"]) != ("mds", 2):
            raise PrepError(f"{path} has shards of format {shard['format']}, version {shard['version']}: only mds 2 is read")
        columns = zip(map(str, shard["column_names"]), map(str, shard["column_encodings"]), strict=True)
        sizes = [-1 if size is None else int(size) for size in shard["column_sizes"]]
        if shard["zip_data"] and not (path / shard["raw_data"]["basename"]).exists():
            raise PrepError(f"{path} is compressed: to decompress it, iterate over StreamingDataset(local={str(path)!r})")
        yield _StreamedFile(shard["raw_data"]["basename"], int(shard["samples"]), dict(columns), sizes)
    for chunk in index.get("chunks", ()):
        config = index["config"]
        if config.get("compression") or config.get("encryption"):
            raise PrepError(f"{path} is compressed or encrypted: rewrite it with optimize(..., compression=None, encryption=None)")
        encodings, (_, spec) = config["data_format"], json.loads(config["data_spec"])
        keys = json.loads(spec["context"]) if spec["type"] == "builtins.dict" else ()
        names = keys if len(keys) == len(encodings) else range(len(encodings))  # those of a tuple, or of what is nested
        columns = zip(map(str, names), map(str, encodings), strict=True)
        yield _StreamedFile(chunk["filename"], int(chunk["chunk_size"]), dict(columns), [-1] * len(encodings))


def list_inputs(root: AnyPath, paths: list[AnyPath], options: LabelOptions, *_: Any) -> SourceList:
    """List the samples of a dataset."""
    (path,) = paths
    try:
        files = {path / file.name: file for file in _files(path)}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise PrepError(f"{path / INDEX} is damaged, or of a newer version: {type(error).__name__}: {error}") from None
    for name in (file.name for file in files.values()):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise PrepError(f"{path / INDEX} lists {name}, which lies outside of {path}; only files inside it are read")
    return list_tables(lambda one, archive: _table(one, archive, files[one], options.column), root, [*files], options)


def _table(path: AnyPath, archive: str, file: _StreamedFile, wanted: str) -> Table:
    columns = file.columns
    images = [name for name in columns if columns[name] in IMAGES] or [name for name in columns if columns[name] in FILES]
    images = [name for name in images if name in ("image", "img")] or images
    if len(images) != 1:
        listed = ", ".join(f"{name} ({encoding})" for name, encoding in columns.items())
        needed = f"one column of image files (jpeg, png, bytes) is needed, called image if there are more; found {listed}"
        raise PrepError(f"{path.parent}: {needed}. For other encodings, prepare a StreamingDataset: fastdata.prep(dataset, OUT)")
    able = [name for name in columns if columns[name] in (*NUMBERS, "str")]
    pair = [name for name in able if name == PAIR_LABEL]
    label = choose_label(able, wanted, f"{path.parent}, among its columns of numbers and texts,", pair)
    inputs, labels = list[Source](), list[Any]()
    for k, cells in enumerate(_samples(path, file)):
        offset, data = cells[images[0]]
        inputs.append(Source(f"{archive}/{k:06d}", -1, len(data), locator=("streamed", archive, offset, len(data))))
        if label:
            cell, encoding = bytes(cells[label][1]), columns[label]
            labels.append(cell.decode() if encoding == "str" else np.frombuffer(cell, np.dtype(encoding).newbyteorder("<")).item())
    others = tuple(name for name in columns if name not in (images[0], label))
    return ArchiveColumns(images[0], label, others), inputs, labels or [None] * len(inputs)


def _samples(path: AnyPath, file: _StreamedFile) -> Iterator[dict[str, tuple[int, memoryview]]]:
    """Yield, for each sample, the offset and the bytes of each cell. Raise ValueError if the file does not fit its index."""
    if look(path)[1] == "not-a-file":
        raise ValueError("it is no ordinary file")
    data, own = np.memmap(path, np.uint8, "r").data, file.sizes.count(-1)
    offsets = np.frombuffer(data[4 : 8 + 4 * file.samples], "<u4").tolist()
    if int.from_bytes(data[:4], "little") != file.samples or len(offsets) != file.samples + 1 or max(offsets) > len(data):
        raise ValueError(f"it does not hold the {file.samples} samples that {INDEX} lists, or was cut short")
    for start, end in pairwise(offsets):
        said = iter(np.frombuffer(data, "<u4", own, start).tolist())
        bounds = list(accumulate((next(said) if size == -1 else size for size in file.sizes), initial=start + 4 * own))
        if bounds != sorted(bounds) or bounds[-1] > end:
            raise ValueError("a sample is longer than its offsets say")
        yield {name: (first, data[first:last]) for name, (first, last) in zip(file.columns, pairwise(bounds), strict=True)}
