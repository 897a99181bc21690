"""Samples as files in folders of their classes."""

from __future__ import annotations

import csv
import os
from pathlib import Path, PurePosixPath

from fastdata.store.store import Store

__all__ = ["make_folders", "place_of", "unused", "write_labels"]


def make_folders(store: Store, root: Path) -> None:
    """Make one for every class, so that one without samples keeps its number."""
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


def place_of(store: Store, index: int, name: str) -> PurePosixPath:
    """Class folder and stem. A store may come from anywhere: no part of a name may lead out of the folder."""
    parts = [_safe(p) for p in PurePosixPath(name).parts if p.strip("/") not in ("", "..", ".")] or ["unnamed"]
    labels = store.manifest.labels
    label = int(store.samples["label"][index]) if labels.kind == "class" else -1
    if 0 <= label < len(labels.names):
        parts = [_folder(labels.names[label]), *(parts[1:] if parts[0] == labels.names[label] and len(parts) > 1 else parts[-1:])]
    return PurePosixPath(*parts)


def unused(place: PurePosixPath, ending: str, taken: set[str]) -> str:
    """Return a file name that none before has, and add it to `taken`."""
    stem, number = str(place.with_suffix("")) if place.suffix else str(place), 1
    name = stem + ending
    while name.casefold() in taken:  # file systems may not tell a.jpg from A.jpg
        number += 1
        name = f"{stem}-{number}{ending}"
    taken.add(name.casefold())
    return name


def write_labels(store: Store, path: Path, names: list[str]) -> None:
    """Write float labels as a table that `--labels` reads."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *store.manifest.labels.names])
        writer.writerows([name, *map(repr, values)] for name, values in zip(names, store.samples["label"].tolist(), strict=True))
