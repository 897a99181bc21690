"""Where exported samples go: files in class folders, and a table of float labels."""

from __future__ import annotations

import csv
import os
from pathlib import Path, PurePosixPath

from fastdata.store.store import Store

__all__ = ["make_folders", "place_of", "unused", "write_labels"]


def make_folders(store: Store, root: Path) -> None:
    """Make a folder for every class, so that a class without samples keeps its number."""
    root.mkdir(parents=True, exist_ok=True)
    if store.manifest.labels.kind == "class":
        for name in store.manifest.labels.names:
            (root / _folder(name)).mkdir(exist_ok=True)


def _folder(name: str) -> str:
    safe = _safe(name.replace("/", "_"))
    return f"_{safe}" if safe in ("", ".", "..") else safe


def _safe(part: str) -> str:
    """Replace what file names cannot hold: zero bytes, and characters that the file system cannot encode."""
    try:
        return os.fsdecode(os.fsencode(part.replace("\0", "_")))
    except UnicodeEncodeError:
        return part.replace("\0", "_").encode("ascii", "backslashreplace").decode()


def place_of(store: Store, index: int, name: str) -> PurePosixPath:
    """Return the class folder and name of a sample. The name is not trusted: no part of it may lead out of the folder."""
    parts = [_safe(p) for p in PurePosixPath(name).parts if p.strip("/") not in ("", "..", ".")] or ["unnamed"]
    labels = store.manifest.labels
    label = int(store.samples["label"][index]) if labels.kind == "class" else -1
    if 0 <= label < len(labels.names):
        parts = [_folder(labels.names[label]), *(parts[1:] if parts[0] == labels.names[label] and len(parts) > 1 else parts[-1:])]
    return PurePosixPath(*parts)


def unused(place: PurePosixPath, ending: str, taken: set[str]) -> str:
    """Return a file name that is not in `taken`, and add it."""
    stem = str(place.with_suffix(""))
    name = stem + ending
    number = 1
    while name.casefold() in taken:  # file systems may treat a.jpg and A.jpg as one
        number += 1
        name = f"{stem}-{number}{ending}"
    taken.add(name.casefold())
    return name


def write_labels(store: Store, path: Path, names: list[str]) -> None:
    """Write float labels as a CSV that `--labels` reads."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *store.manifest.labels.names])
        writer.writerows([name, *map(repr, values)] for name, values in zip(names, store.samples["label"].tolist(), strict=True))
