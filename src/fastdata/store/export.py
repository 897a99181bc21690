"""Export a store as ordinary files."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fastdata.errors import StoreError
from fastdata.options import as_option
from fastdata.store.store import Store
from fastdata.types import StrPath

OPTIONS = {"shard_size": "webdataset", "val_fraction": "nanogpt"}  # and the format that each belongs to


def export(
    path: StrPath,
    out: StrPath,
    *,
    to: str | None = None,
    size: int | None = None,
    tick: Callable[[int], None] = lambda n: None,
    **options: Any,
) -> int:
    """Write a store as files that other programs read, and return the number of samples (of files for tokens).

    Args:
        out: a folder that is empty or does not exist.
        to: one of the kind's `exports`, or None for the first.
        size: the size of the variant, or None for the largest.
        tick: called with 1 for each sample.
        options: those in `OPTIONS` for one format, or None for the default.

    Raises:
        StoreError: the files cannot be written, or the format cannot hold the samples.
        ValueError: an argument is wrong, or belongs to another format.
    """
    store, root = Store(path, kind=None), Path(out)
    kind = store.kind
    format = to or kind.exports[0]
    if format not in kind.exports:
        raise ValueError(f"--to is {to!r}, but {path} holds {kind.name}: give one of {', '.join(kind.exports)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if OPTIONS[name] != format:
            raise ValueError(f"{as_option(name)} goes with --to {OPTIONS[name]}, but {path} is exported to {format}: leave it out")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StoreError(f"cannot export to {root}: it exists and is not an empty folder; choose another one")
    try:
        return int(kind.module("export").export(store, root, format, size, tick, **given))
    except OSError as error:
        raise StoreError(f"cannot export to {root}: {error}") from error


def write_folders(
    store: Store,
    root: Path,
    endings: Mapping[str, str],
    write: Callable[[int, str, Path], object],
    stored_ending: re.Pattern[str],
    tick: Callable[[int], None],
) -> list[str]:
    """Write files of each sample in folders of the classes, and float labels to labels.csv, which `--labels` reads.

    Files keep their names, without `stored_ending`; a name that occurs again gets a number.

    endings: for each file of a sample, the folder in `root` and the ending of its name. write: writes the file of a sample, by its
    row and its folder, to a path. Returns the name of each sample's first file in its folder.
    """
    labels, classes = store.manifest.labels, _class_folders(store)
    for folder in endings:
        for name in classes or [""]:  # also for a class without samples, which keeps its number
            (root / folder / name).mkdir(parents=True, exist_ok=True)
    written, taken = list[str](), set[str]()
    for row, name in enumerate(store.names()):
        parts = _parts(stored_ending.sub("", name))
        label = int(store.samples["label"][row]) if labels.kind == "class" else -1
        if 0 <= label < len(classes):
            parts = [classes[label], *(parts[1:] if parts[0] == labels.names[label] and len(parts) > 1 else parts[-1:])]
        stem = _unused("/".join(parts), taken)
        for folder, ending in endings.items():
            target = root / folder / (stem + ending)
            target.parent.mkdir(parents=True, exist_ok=True)
            write(row, folder, target)
        written.append(stem + next(iter(endings.values())))
        tick(1)
    if labels.kind == "vector":
        with (root / "labels.csv").open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(["path", *labels.names])
            rows = zip(written, store.samples["label"].tolist(), strict=True)
            writer.writerows([name, *map(repr, values)] for name, values in rows)
    return written


def _class_folders(store: Store) -> list[str]:
    """Return the folder of each class; no two have the same."""
    folders = list[str]()
    for name in store.manifest.labels.names if store.manifest.labels.kind == "class" else ():
        (folder,) = _parts(name.replace("/", "_"))
        while folder in folders:
            folder += "_"
        folders.append(folder)
    return folders


def _parts(name: str) -> list[str]:
    """Return the folders and the name of a file. The name is not trusted: no part of it may lead out of the folder.

    What file names cannot hold is replaced: zero bytes, and characters that the file system cannot encode.
    """
    safe = name.replace("\0", "_")
    try:
        os.fsencode(safe)
    except UnicodeEncodeError:
        safe = safe.encode("ascii", "backslashreplace").decode()
    return [part for part in PurePosixPath(safe).parts if part.strip("/") not in ("", "..", ".")] or ["unnamed"]


def _unused(stem: str, taken: set[str]) -> str:
    """Return a name that is not in `taken`, and add it."""
    name, number = stem, 1
    while name.casefold() in taken:  # file systems may treat a.jpg and A.jpg as one
        number += 1
        name = f"{stem}-{number}"
    taken.add(name.casefold())
    return name
