"""Export a store of images as image files in class folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fastdata.codecs.pixels import decode_record, encode_record
from fastdata.images.export_columns import ExportColumns, as_json, warn_left_out, write_meanings
from fastdata.store.class_folders import make_folders, place_of, unused, write_labels
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["ENDINGS", "as_file", "write_folders"]

ENDINGS = {"jpeg": ".jpg", "original": ".jpg", "png": ".png", "rgb": ".png"}
METADATA, FILE_NAME = "metadata.jsonl", "file_name"


def as_file(store: Store, variant: Variant, index: int, record: memoryview) -> bytes:
    """Return a record as an ordinary image file: JPEG and PNG unchanged, raw pixels as PNG."""
    if variant.form.codec != "rgb":
        return bytes(record)
    height, width = (int(store.field(variant, side)[index]) for side in ("height", "width"))
    pixels = decode_record(record, variant.form, height, width)
    return encode_record(pixels[:, :, 0] if variant.form.channels == 1 else pixels, "png")


def write_folders(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image, its mask, and the other images of the sample, as files.

    Float labels go to labels.csv, columns to metadata.jsonl.

    A line of metadata.jsonl is an object with the `file_name` of an image, relative to the table, and the value of each column, as
    ImageFolder of Hugging Face's datasets reads it.
    """
    several, masked = store.manifest.images, store.manifest.section("masks") is not None
    folder = several[0] if several else "images" if masked else ""
    written = _write_images(store, root, size, tick, folder)
    if store.manifest.labels.kind == "vector":
        write_labels(store, root / "labels.csv", written)
    if store.manifest.columns:
        _write_metadata(root / folder, ExportColumns(store, store.variant(size)), written)
    return len(written)


def _write_metadata(folder: Path, rows: ExportColumns, names: list[str]) -> None:
    left_out = [column for column in rows.columns if column.type == "bytes" or column.name == FILE_NAME]
    stored = [column for column in rows.columns if column not in left_out]
    with (folder / METADATA).open("w") as file:
        for name, values in zip(names, rows, strict=True):
            line = {FILE_NAME: name, **{column.name: as_json(values[column.name]) for column in stored}}
            file.write(json.dumps(line) + "\n")
    write_meanings(rows.store, folder, stored)
    warn_left_out(folder, left_out, f"{METADATA} has no place for these columns", rows.left)


def _write_images(store: Store, root: Path, size: int | None, tick: Callable[[int], None], folder: str) -> list[str]:
    """Write every image as a file, and its mask, if it has one, to `masks`.

    Several images of a sample go to folders of their names.

    Args:
        folder: of the images in `root`, where a sample has one.

    Returns:
        The name of each image's file in the folder.
    """
    variant = store.variant(size)
    names = store.names()
    masked = store.manifest.section("masks") is not None
    several = store.manifest.images
    places = {image: store.variant(size, image=image) for image in several} or {folder: variant}
    if masked:
        places["masks"] = store.variant(size, mask=True)
    readers = [store.reader(v) for v in places.values()]
    taken = set[str]()
    written = []
    for place in places:
        make_folders(store, root / place)
    for k, name in enumerate(names):
        relative = unused(place_of(store, k, name), ENDINGS[variant.form.codec], taken)
        for (place, kind), reader in zip(places.items(), readers, strict=True):
            target = (root / place / relative).with_suffix(ENDINGS[kind.form.codec])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(as_file(store, kind, k, reader.get(k)))
        written.append(relative)
        tick(1)
    return written
