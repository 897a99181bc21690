"""Export a store of images: as files in class folders, or as WebDataset shards."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.codecs.pixels import decode_record, encode_record
from fastdata.errors import StoreError, warn_user
from fastdata.images.geometry import move_columns, placement
from fastdata.sources.tar import CLASSES, MASK
from fastdata.store.column import SOURCE_SIZE, Column
from fastdata.store.columns import ColumnReader, Lists
from fastdata.store.export import write_folders
from fastdata.store.manifest import Variant
from fastdata.store.reader import ShardReader
from fastdata.store.store import Store
from fastdata.words import number_of

__all__ = ["ColumnValues", "export"]

Array = np.ndarray[Any, np.dtype[Any]]

ENDINGS = {"jpeg": ".jpg", "original": ".jpg", "png": ".png", "rgb": ".png"}
ENDING = re.compile(r"(?<=[^/])\.[^./]+$")  # of the file that an image was made of
TEXT_ENDINGS = {"text": ".txt", "json": ".json", "bytes": ".bin"}
MAX_ENDING = 90  # letters: a name in a tar of this format has 100 bytes
TAR_BYTES = 1_000_000_000  # default limit of a shard
METADATA, FILE_NAME = "metadata.jsonl", "file_name"
COLUMN_NAMES = "columns.json"  # what whole numbers in columns stand for
CHUNK = 1024  # samples that are read at once


def export(store: Store, root: Path, to: str, size: int | None, tick: Callable[[int], None], **options: int) -> int:
    """Write image files in class folders, or WebDataset tars. Return the number of samples."""
    if to == "webdataset":
        return _export_tars(store, root, size, tick, **options)
    return _export_images(store, root, size, tick)


def _export_images(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image, its mask, and the other images of the sample, as files.

    Float labels go to labels.csv, columns to metadata.jsonl: a line is an object with the `file_name` of an image, relative to the
    table, and the value of each column, as ImageFolder of Hugging Face's datasets reads it.
    """
    single = "" if store.manifest.section("masks") is None else "images"
    files = _files(store, size, single, "masks")
    endings = {folder: ending for folder, (ending, _) in files.items()}
    names = write_folders(store, root, endings, lambda row, folder, path: path.write_bytes(files[folder][1](row)), ENDING, tick)
    columns = ColumnValues(store, store.variant(size))
    if columns.columns:
        table = root / next(iter(files))
        left_out = [column for column in columns.columns if column.type == "bytes" or column.name == FILE_NAME]
        stored = [column for column in columns.columns if column not in left_out]
        with (table / METADATA).open("w") as file:
            for name, values in zip(names, columns, strict=True):
                line = {FILE_NAME: name, **{column.name: _as_json(values[column.name]) for column in stored}}
                file.write(json.dumps(line) + "\n")
        _write_meanings(store, table, stored)
        if left_out:
            listed = ", ".join(column.name for column in left_out)
            warn_user(f"export to {table}: {METADATA} has no place for these columns: {listed}; `dataset.columns` has their values")
        columns.warn(table)
    return len(names)


def _export_tars(store: Store, root: Path, size: int | None, tick: Callable[[int], None], shard_size: int = TAR_BYTES) -> int:
    """Write `00000.tar`, `00001.tar` and so on, each of at most so many bytes.

    A sample is `00000000.jpg` or `.png` (`00000000.left.jpg`, `00000000.right.jpg` and so on where a sample has several images),
    `00000000.mask.png` where there are masks, and its label: `00000000.cls`, its class
    number, or `00000000.json`, {"label": [...], "names": [...]}. The class names go to `classes.json`.

    A column is `00000000.NAME.npy` for numbers, arrays and lists, `.NAME.json` for JSON, `.NAME.bin` for bytes, and `.NAME.txt` for
    text, or `.txt` if it is the only text. `columns.json` says what whole numbers stand for; tokenizers' files lie next to it.

    Raises:
        StoreError: if a sample does not fit into a tar of that size, or a column has no name in a tar.
    """
    files = _files(store, size, "", MASK.split(".")[1])
    columns = ColumnValues(store, store.variant(size))
    endings = _column_endings(columns.columns)
    root.mkdir(parents=True, exist_ok=True)
    if store.manifest.labels.kind == "class":
        (root / CLASSES).write_text(json.dumps(store.manifest.labels.names, indent=0) + "\n")
    _write_meanings(store, root, columns.columns)
    room = shard_size // tarfile.RECORDSIZE * tarfile.RECORDSIZE - 2 * tarfile.BLOCKSIZE  # two empty blocks end whole records
    tar, shards = _open_tar(root, 0), 1
    for row, values in enumerate(columns):
        members = {(f".{name}" if name else "") + ending: read(row) for name, (ending, read) in files.items()}
        members |= _label(store, row) | {endings[c.name]: _member(c, values[c.name]) for c in columns.columns}
        need = sum(tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE for data in members.values())
        if need > room:
            tar.close()
            raise StoreError(f"sample {row} takes {need} bytes, more than a tar of {shard_size} holds: give a larger --shard-size")
        if tar.offset + need > room:
            tar.close()
            tar, shards = _open_tar(root, shards), shards + 1
        for ending, data in members.items():
            header = tarfile.TarInfo(f"{row:08d}{ending}")
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        tick(1)
    tar.close()
    columns.warn(root)
    return len(store)


def _files(store: Store, size: int | None, single: str, mask: str) -> dict[str, tuple[str, Callable[[int], bytes]]]:
    """Return the files of a sample by their names: the ending of each, and what reads it, by its row.

    single, mask: the names of an image without a name, and of the mask.
    """
    variants = {image: store.variant(size, image=image) for image in store.manifest.images} or {single: store.variant(size)}
    if store.manifest.section("masks") is not None:
        variants[mask] = store.variant(size, mask=True)
    return {name: (ENDINGS[v.form.codec], partial(_as_file, store, v, store.reader(v))) for name, v in variants.items()}


def _as_file(store: Store, variant: Variant, reader: ShardReader, row: int) -> bytes:
    """Return a record as an ordinary image file: JPEG and PNG unchanged, raw pixels as PNG."""
    record = reader.get(row)
    if variant.form.codec != "rgb":
        return bytes(record)
    height, width = (int(store.field(variant, side)[row]) for side in ("height", "width"))
    pixels = decode_record(record, variant.form, height, width)
    return encode_record(pixels[:, :, 0] if variant.form.channels == 1 else pixels, "png")


def _open_tar(root: Path, shard: int) -> tarfile.TarFile:
    return tarfile.open(root / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT)


def _column_endings(columns: Sequence[Column]) -> dict[str, str]:
    """Return the ending of each column's members. WebDataset ignores the case of endings."""
    types = [column.type for column in columns]
    endings = {column.name: f".{column.name}{TEXT_ENDINGS.get(column.type, '.npy')}" for column in columns}
    if types.count("text") == 1:
        endings[columns[types.index("text")].name] = ".txt"
    lower = [ending.lower() for ending in endings.values()]
    for name, ending in endings.items():
        if lower.count(ending.lower()) > 1 or len(ending) > MAX_ENDING:
            raise StoreError(f"column {name} has no place in a tar: its name is too long, or that of another but for the case")
    return endings


def _member(column: Column, value: Any) -> bytes:
    """Return the bytes of a column's value."""
    match column.type:
        case "bytes":
            return bytes(value)
        case "text":
            return str(value).encode()
        case "json":
            return json.dumps(value, ensure_ascii=False).encode()
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def _label(store: Store, row: int) -> dict[str, bytes]:
    labels = store.manifest.labels
    if labels.kind == "none":
        return {}
    value = store.samples["label"][row].tolist()
    if labels.kind == "class":
        return {".cls": str(value).encode()}
    return {".json": json.dumps({"label": value, "names": labels.names}).encode()}


class ColumnValues:
    """Iterates over a store's samples; an item has the value of each column, by name.

    Values are arrays (of lists [length, *shape]), text, bytes or objects of JSON. Boxes, keypoints and areas are those of the
    variant's images. Instances whose boxes are cut off entirely are left out, and counted in `lost`.
    """

    def __init__(self, store: Store, variant: Variant) -> None:
        self._store, self._variant = store, variant
        self.columns = tuple(column for column in store.manifest.columns if column != SOURCE_SIZE)
        self.lost = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self._store), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(self._store)))
            found = self.take(rows)
            for k in range(len(rows)):
                yield {name: values[k] for name, values in found.items()}

    def take(self, rows: Array) -> dict[str, Any]:
        """Return the values of each column for these samples, int64 [n]: a sequence of n values, by the column's name."""
        store, options = self._store, self._store.manifest.options
        values = {c.name: ColumnReader(store.path, c, len(store)).read(rows) for c in store.manifest.columns}
        files = values.pop(SOURCE_SIZE.name, None)
        if isinstance(files, np.ndarray):
            placed, _ = placement(files, self._variant.size, options["resize"], upscale=options["upscale"])
            sizes = np.stack([store.field(self._variant, side)[rows] for side in ("width", "height")], axis=1)
            self.lost += move_columns(self.columns, values, placed, sizes.astype(np.float64))
        return {name: found.items() if isinstance(found, Lists) else found for name, found in values.items()}

    def warn(self, out: Path) -> None:
        """Warn if instances were left out."""
        if self.lost:
            lie = "lie outside of their images, as --resize crop left these" if self.lost > 1 else "lies outside of its image"
            warn_user(
                f"export to {out}: left out {number_of(self.lost, 'box')} that {lie}, with the same instances in other columns"
            )


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it. Numbers that are not finite become null."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        objects = np.array(value, object)
        objects[~np.isfinite(value)] = None
        return objects.tolist()
    return value.tolist()


def _write_meanings(store: Store, root: Path, columns: Sequence[Column]) -> None:
    """Write what whole numbers stand for, if columns say so: an object with a list for each of these, and the tokenizers' files."""
    if names := {column.name: column.names for column in columns if column.names}:
        (root / COLUMN_NAMES).write_text(json.dumps(names, indent=0) + "\n")
    for column in columns:
        if column.tokenizer_file:
            shutil.copyfile(store.path / column.tokenizer_file, root / Path(column.tokenizer_file).name)
