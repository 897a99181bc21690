"""Export a store of images as WebDataset shards: tars in which a sample's members are adjacent and share a key."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.images.export import ENDINGS, as_file
from fastdata.images.export_columns import ExportColumns, warn_left_out, write_meanings
from fastdata.sources.tar import CLASSES, MASK
from fastdata.store.column import Column
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["TAR_BYTES", "write_tars"]

TAR_BYTES = 1_000_000_000  # default limit of a shard
ENDING_OF_TEXT = {"text": ".txt", "json": ".json", "bytes": ".bin"}
LONGEST_ENDING = 90  # a name in a tar of this format has 100 bytes


def write_tars(store: Store, root: Path, size: int | None, tick: Callable[[int], None], most: int) -> int:
    """Write `00000.tar`, `00001.tar` and so on, each of at most `most` bytes.

    A sample is `00000000.jpg` or `.png` (`00000000.left.jpg`, `00000000.right.jpg` and so on where a sample has several images),
    `00000000.mask.png` where there are masks, and its label: `00000000.cls`, its class
    number, or `00000000.json`, {"label": [...], "names": [...]}. The class names go to `classes.json`.

    A column is `00000000.NAME.npy` for numbers, arrays and lists, `.NAME.json` for JSON, `.NAME.bin` for bytes, and `.NAME.txt` for
    text, or `.txt` if it is the only text. `columns.json` says what whole numbers stand for; the files of tokenizers
    lie next to it.

    The tars have no times and no owners: the same store gives the same bytes.

    Raises:
        StoreError: if a sample does not fit into a tar of that size, or a column has no name in a tar. All written files are
            removed.
    """
    images = {image: store.variant(size, image=image) for image in store.manifest.images or ("",)}
    variants = {
        f".{name}{ENDINGS[image.form.codec]}" if name else ENDINGS[image.form.codec]: image for name, image in images.items()
    }
    if store.manifest.section("masks") is not None:
        variants[MASK] = store.variant(size, mask=True)
    rows = ExportColumns(store, store.variant(size))
    endings = _column_endings(rows.columns)
    created = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    if store.manifest.labels.kind == "class":
        (root / CLASSES).write_text(json.dumps(store.manifest.labels.names, indent=0) + "\n")
    meanings = write_meanings(store, root, rows.columns)
    shard = 0
    tar = _open_tar(root, shard)
    try:
        for k, members in enumerate(_samples(store, variants, rows, endings)):
            need = sum(tarfile.BLOCKSIZE + _blocks(len(data)) for _, data in members)
            if _tar_bytes(need) > most:
                raise StoreError(
                    f"sample {k} takes a tar of {_tar_bytes(need)} bytes, more than {most}: give a larger --shard-size"
                )
            if _tar_bytes(tar.offset + need) > most:
                tar.close()
                shard += 1
                tar = _open_tar(root, shard)
            for ending, data in members:
                header = tarfile.TarInfo(f"{k:08d}{ending}")
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
            tick(1)
    except StoreError:
        for path in (root / CLASSES, *meanings, *(root / _name(k) for k in range(shard + 1))):
            path.unlink(missing_ok=True)
        if created:
            root.rmdir()
        raise
    finally:
        tar.close()
    warn_left_out(root, (), "", rows.left)
    return len(store)


def _name(shard: int) -> str:
    return f"{shard:05d}.tar"


def _open_tar(root: Path, shard: int) -> tarfile.TarFile:
    return tarfile.open(root / _name(shard), "w", format=tarfile.USTAR_FORMAT)


def _blocks(size: int) -> int:
    """Round a size up to whole blocks of a tar."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _tar_bytes(members: int) -> int:
    """Return the size of a tar from that of its members. Two empty blocks end it, and it fills whole records."""
    return -(-(members + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _samples(
    store: Store, variants: dict[str, Variant], rows: ExportColumns, endings: dict[str, str]
) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the endings and bytes of each sample's members."""
    readers = {ending: store.reader(variant) for ending, variant in variants.items()}
    for k, values in enumerate(rows):
        files = [(ending, as_file(store, variant, k, readers[ending].get(k))) for ending, variant in variants.items()]
        yield files + _label(store, k) + [(endings[c.name], _member(c, values[c.name])) for c in rows.columns]


def _column_endings(columns: Sequence[Column]) -> dict[str, str]:
    """Return the ending of each column's members. WebDataset ignores the case of endings."""
    types = [column.type for column in columns]
    endings = {column.name: f".{column.name}{ENDING_OF_TEXT.get(column.type, '.npy')}" for column in columns}
    if types.count("text") == 1:
        endings[columns[types.index("text")].name] = ".txt"
    lower = [ending.lower() for ending in endings.values()]
    for name, ending in endings.items():
        if lower.count(ending.lower()) > 1 or len(ending) > LONGEST_ENDING:
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


def _label(store: Store, index: int) -> list[tuple[str, bytes]]:
    labels = store.manifest.labels
    if labels.kind == "none":
        return []
    value = store.samples["label"][index].tolist()
    if labels.kind == "class":
        return [(".cls", str(value).encode())]
    return [(".json", json.dumps({"label": value, "names": labels.names}).encode())]
