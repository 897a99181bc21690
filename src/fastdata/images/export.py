"""Export a store of images: as files in class folders, or as WebDataset shards."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.codecs.pixels import EXTENSIONS, decode_record, encode_record
from fastdata.errors import StoreError, warn_user
from fastdata.images.geometry import move_columns, placement
from fastdata.sources.tar import CLASSES, MASK
from fastdata.store.columns import SOURCE_SIZE, Column, ColumnReader, Lists
from fastdata.store.export import write_folders
from fastdata.store.manifest import Variant
from fastdata.store.reader import ShardReader
from fastdata.store.store import Store
from fastdata.types import Array
from fastdata.words import number_of

ENDING = re.compile(r"(?<=[^/])\.[^./]+$")  # of the file that an image was made of
TEXT_ENDINGS = {"text": ".txt", "json": ".json", "bytes": ".bin"}
MAX_ENDING = 90  # letters: a name in a tar of this format has 100 bytes
TAR_BYTES = 1_000_000_000  # default limit of a shard
METADATA, FILE_NAME = "metadata.jsonl", "file_name"
COLUMN_NAMES = "columns.json"  # what whole numbers in columns stand for
CHUNK = 1024  # samples that are read at once


def export(store: Store, root: Path, to: str, size: int | None, tick: Callable[[int], None], **options: int) -> int:
    """Write image files in class folders, or WebDataset tars. Return the number of samples."""
    write = _export_tars if to == "webdataset" else _export_images
    write(store, root, size, tick, **options)
    return len(store)


def _columns(store: Store) -> list[Column]:
    """Return the columns to export: all but the sizes of the prepared files."""
    return [column for column in store.manifest.columns if column != SOURCE_SIZE]


def _export_images(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> None:
    """Write images and masks as files, float labels to labels.csv, and columns to metadata.jsonl, with a `file_name` relative to
    its folder, as ImageFolder of Hugging Face's datasets reads them."""
    files = _files(store, size, "" if store.manifest.section("masks") is None else "images", "masks")
    endings = {folder: ending for folder, (ending, _) in files.items()}
    names = write_folders(store, root, endings, lambda row, folder, path: path.write_bytes(files[folder][1](row)), ENDING, tick)
    if not (columns := _columns(store)):
        return
    table, stored = root / next(iter(files)), [c for c in columns if c.type != "bytes" and c.name != FILE_NAME]
    with (table / METADATA).open("w") as file:
        for name, values in zip(names, _rows(store, store.variant(size), table), strict=True):
            line = {FILE_NAME: name, **{column.name: _as_json(values[column.name]) for column in stored}}
            file.write(json.dumps(line) + "\n")
    _write_meanings(store, table, stored)
    if left_out := ", ".join(column.name for column in columns if column not in stored):
        warn_user(f"export to {table}: {METADATA} has no place for these columns: {left_out}; `dataset.columns` has their values")


def _export_tars(store: Store, root: Path, size: int | None, tick: Callable[[int], None], shard_size: int = TAR_BYTES) -> None:
    """Write `00000.tar`, `00001.tar` and so on, of at most `shard_size` bytes each, unless one sample is larger.

    A sample is `00000000.jpg` or `.png` (`00000000.left.jpg` and so on if it has several images); `00000000.mask.png`; its label,
    as `00000000.cls` or as `00000000.json`, {"label": [...], "names": [...]}; and a member for each column, whose ending
    `_column_endings` chooses. The class names go to `classes.json`.
    """
    files, columns = _files(store, size, "", MASK.split(".")[1]), _columns(store)
    endings = _column_endings(columns)
    root.mkdir(parents=True, exist_ok=True)
    if store.manifest.labels.kind == "class":
        (root / CLASSES).write_text(json.dumps(store.manifest.labels.names, indent=0) + "\n")
    _write_meanings(store, root, columns)
    room = shard_size // tarfile.RECORDSIZE * tarfile.RECORDSIZE - 2 * tarfile.BLOCKSIZE  # two empty blocks end whole records
    tars = (tarfile.open(root / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) for shard in count())
    tar = next(tars)
    for row, values in enumerate(_rows(store, store.variant(size), root)):
        members = {(f".{name}" if name else "") + ending: read(row) for name, (ending, read) in files.items()}
        members |= _label(store, row) | {endings[c.name]: _member(c, values[c.name]) for c in columns}
        need = sum(tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE for data in members.values())
        if tar.offset and tar.offset + need > room:
            tar.close()
            tar = next(tars)
        for ending, data in members.items():
            header = tarfile.TarInfo(f"{row:08d}{ending}")
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        tick(1)
    tar.close()


def _files(store: Store, size: int | None, single: str, mask: str) -> dict[str, tuple[str, Callable[[int], bytes]]]:
    """Return the ending of each file of a sample, and a function that reads the file of a row, by the file's name.

    single, mask: the names of an image without a name, and of the mask.
    """
    variants = {image: store.variant(size, image=image) for image in store.manifest.images} or {single: store.variant(size)}
    if store.manifest.section("masks") is not None:
        variants[mask] = store.variant(size, mask=True)
    return {
        name: (EXTENSIONS.get(variant.form.codec, ".png"), partial(_as_file, store, variant, store.reader(variant)))
        for name, variant in variants.items()
    }


def _as_file(store: Store, variant: Variant, reader: ShardReader, row: int) -> bytes:
    """Return a record as an ordinary image file: unchanged, but raw pixels as PNG."""
    if variant.form.codec in EXTENSIONS:
        return bytes(reader.get(row))
    return encode_record(read_pixels(store, variant, reader, row), "png")


def read_pixels(store: Store, variant: Variant, reader: ShardReader, row: int) -> Array:
    """Return the pixels of a record, RGB [H, W, 3] or grey [H, W]."""
    height, width = (int(store.field(variant, side)[row]) for side in ("height", "width"))
    pixels = decode_record(reader.get(row), variant.form, height, width)
    return pixels[:, :, 0] if variant.form.channels == 1 else pixels


def _column_endings(columns: Sequence[Column]) -> dict[str, str]:
    """Return the ending of each column's members; the only column of text has .txt. WebDataset ignores the case of endings."""
    texts = [column.name for column in columns if column.type == "text"]
    endings = {column.name: f".{column.name}{TEXT_ENDINGS.get(column.type, '.npy')}" for column in columns}
    endings |= {name: ".txt" for name in texts if len(texts) == 1}
    lower = [ending.lower() for ending in endings.values()]
    for name, ending in endings.items():
        if lower.count(ending.lower()) > 1 or len(ending) > MAX_ENDING:
            raise StoreError(f"column {name} cannot be in a tar: its name is too long, or equals another, ignoring case: rename it")
    return endings


def _member(column: Column, value: Any) -> bytes:
    """Return the bytes of a column's value."""
    if column.type in TEXT_ENDINGS:
        text = json.dumps(value, ensure_ascii=False) if column.type == "json" else value
        return text.encode() if isinstance(text, str) else bytes(text)
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def _label(store: Store, row: int) -> dict[str, bytes]:
    labels, value = store.manifest.labels, store.samples["label"][row].tolist()
    if labels.kind == "vector":
        return {".json": json.dumps({"label": value, "names": labels.names}).encode()}
    return {".cls": str(value).encode()} if labels.kind == "class" else {}


def _rows(store: Store, variant: Variant, out: Path) -> Iterator[dict[str, Any]]:
    """Yield the value of each column, by name, for each sample; at the end, warn if instances were left out."""
    lost = 0
    for rows in np.split(np.arange(len(store)), range(CHUNK, len(store), CHUNK)):
        found, gone = read_columns(store, variant, rows)
        lost += gone
        for k in range(len(rows)):
            yield {name: values[k] for name, values in found.items()}
    if lost:
        lie = "lie outside of their images after --resize crop" if lost > 1 else "lies outside of its image"
        warn_user(f"export to {out}: left out {number_of(lost, 'box')} that {lie}, and the matching entries of other columns")


def read_columns(store: Store, variant: Variant, rows: Array) -> tuple[dict[str, Any], int]:
    """Return the values of each column for samples, int64 [n], by name, with geometry in pixels of the variant's images; and the
    number of boxes that are cut off entirely, and so left out with their instances."""
    values = {c.name: ColumnReader(store.path, c, len(store)).read(rows) for c in store.manifest.columns}
    files, lost = values.pop(SOURCE_SIZE.name, None), 0
    if isinstance(files, np.ndarray):
        lost = move_columns(_columns(store), values, *placement(store, variant, rows, files))
    return {name: found.items() if isinstance(found, Lists) else found for name, found in values.items()}, lost


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it. Numbers that are not finite become null."""
    numbers = isinstance(value, np.ndarray | np.generic)
    return np.where(np.isfinite(value), value, None).tolist() if numbers else value  # type: ignore[attr-defined]


def _write_meanings(store: Store, root: Path, columns: Sequence[Column]) -> None:
    """Write what the columns' whole numbers stand for, and the tokenizers' files."""
    if names := {column.name: column.names for column in columns if column.names}:
        (root / COLUMN_NAMES).write_text(json.dumps(names, indent=0) + "\n")
    for column in columns:
        if column.tokenizer_file:
            shutil.copyfile(store.path / column.tokenizer_file, root / Path(column.tokenizer_file).name)
