"""export: a store becomes ordinary files again, in class folders or in tars."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from fastdata.errors import StoreError
from fastdata.store.export_table import export_table
from fastdata.store.export_tokens import TOKEN_FORMATS, export_tokens
from fastdata.store.image_files import ENDINGS, as_file
from fastdata.store.store import Store
from fastdata.store.webdataset import TAR_BYTES, write_tars

__all__ = ["LAYOUTS", "export"]

LAYOUTS = ("imagefolder", "webdataset")


def export(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str | None = None,
    size: int | None = None,
    shard_size: int | None = None,
    val_fraction: float | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> int:
    """Write a store as files that others read: of images, JPEG and PNG records as they are stored, raw pixels and planes as PNG.

    Classes become folders; float labels go to `labels.csv`, in the form that `--labels` reads. Names stay, with the ending of
    what the file now is; of two that would be the same, the later gets a number. Of a store with masks, the images go to
    `images`, and the masks to `masks` under the same names, as PNG.

    Args:
        path: the store.
        out: a folder that is empty or does not exist.
        to: of images: "imagefolder" (None stands for it), as above, or "webdataset": tars, see `fastdata.store.webdataset`. Of
            tokens: "nanogpt" (None stands for it), "llmc" or "megatron", see `export_tokens`. Of arrays: "npy". Of a table:
            "parquet".
        size: which variant; None: the largest.
        shard_size: of tars: bytes that none of them exceeds; None: 1 GB.
        val_fraction: to "nanogpt": how much of the tokens, the last ones, goes to val.bin; 0: nothing; None: 0.1.
        tick: called with 1 for each sample.

    Returns:
        The number of samples; of tokens, of files.

    Raises:
        StoreError: it can't be written, or the format can't hold it.
        ValueError: a wrong argument, or one for another format.
    """
    store, root = Store(path, kind=None), Path(out)
    known = {"images": LAYOUTS, "tokens": TOKEN_FORMATS, "arrays": ("npy",), "table": ("parquet",)}[store.manifest.kind]
    if (to or known[0]) not in known:
        raise ValueError(f"--to is {to!r}, but {path} holds {store.manifest.kind}, which go to {', '.join(known)}")
    for name, value, format in (("--shard-size", shard_size, "webdataset"), ("--val-fraction", val_fraction, "nanogpt")):
        if value is not None and (to or known[0]) != format:
            raise ValueError(f"{name} goes with --to {format}, but {path} is exported to {to or known[0]}: leave it out")
    if shard_size is not None and shard_size < 1:
        raise ValueError(f"--shard-size is {shard_size}, but must be positive")
    if val_fraction is not None and not 0 <= val_fraction < 1:
        raise ValueError(f"--val-fraction is {val_fraction}, but must be from 0 to less than 1")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StoreError(f"export to {root}: it exists and is not an empty folder; choose another")
    if store.manifest.kind == "tokens":
        root.mkdir(parents=True, exist_ok=True)
        return export_tokens(store, root, to or known[0], tick, val_fraction)
    if store.manifest.kind == "arrays":
        from fastdata.store.export_arrays import export_arrays  # which uses what is below

        return export_arrays(store, root, tick)
    if store.manifest.kind == "table":
        return export_table(store, root, tick)
    try:
        if to == "webdataset":
            return write_tars(store, root, size, tick, shard_size or TAR_BYTES)
        return _write_folders(store, root, size, tick)
    except OSError as error:
        raise StoreError(f"export to {root}: {error}") from error


def _write_folders(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    variant, names, masked = store.variant(size), store.names(), store.manifest.masks is not None
    places = {"images": variant, "masks": store.variant(size, mask=True)} if masked else {"": variant}
    readers, taken, written = [store.reader(v) for v in places.values()], set[str](), []
    for folder in places:
        _make_folders(store, root / folder)
    for k, name in enumerate(names):
        relative = _unused(_place(store, k, name), ENDINGS[variant.form.codec], taken)
        for (folder, kind), reader in zip(places.items(), readers, strict=True):
            target = (root / folder / relative).with_suffix(ENDINGS[kind.form.codec])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(as_file(store, kind, k, reader.get(k)))
        written.append(relative)
        tick(1)
    if store.manifest.labels.kind == "vector":
        _write_labels(store, root / "labels.csv", written)
    return len(names)


def _make_folders(store: Store, root: Path) -> None:
    """Of every class, so that one without images keeps its number."""
    root.mkdir(parents=True, exist_ok=True)
    if store.manifest.labels.kind == "class":
        for name in store.manifest.labels.names:
            (root / _folder(name)).mkdir(exist_ok=True)


def _folder(name: str) -> str:
    """The folder of a class."""
    safe = _safe(name.replace("/", "_"))
    return f"_{safe}" if safe in ("", ".", "..") else safe


def _safe(part: str) -> str:
    """What the file system can hold."""
    try:
        return os.fsdecode(os.fsencode(part.replace("\0", "_")))
    except UnicodeEncodeError:
        return part.replace("\0", "_").encode("ascii", "backslashreplace").decode()


def _place(store: Store, index: int, name: str) -> PurePosixPath:
    """Class folder and stem. A store may come from anywhere: no part of a name may lead out of the folder."""
    parts = [_safe(p) for p in PurePosixPath(name).parts if p.strip("/") not in ("", "..", ".")] or ["unnamed"]
    labels = store.manifest.labels
    label = int(store.samples["label"][index]) if labels.kind == "class" else -1
    if 0 <= label < len(labels.names):
        parts = [_folder(labels.names[label]), *(parts[1:] if parts[0] == labels.names[label] and len(parts) > 1 else parts[-1:])]
    return PurePosixPath(*parts)


def _unused(place: PurePosixPath, ending: str, taken: set[str]) -> str:
    stem, number = str(place.with_suffix("")) if place.suffix else str(place), 1
    name = stem + ending
    while name.casefold() in taken:  # file systems may not tell a.jpg from A.jpg
        number += 1
        name = f"{stem}-{number}{ending}"
    taken.add(name.casefold())
    return name


def _write_labels(store: Store, path: Path, names: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *store.manifest.labels.names])
        writer.writerows([name, *map(repr, values)] for name, values in zip(names, store.samples["label"].tolist(), strict=True))
