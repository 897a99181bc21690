"""fastdata.open, which opens a store as the dataset of its kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.remote.reader import locate
from fastdata.store.format import Manifest, read_current

__all__ = ["described", "open"]


CACHED = "cache", "cache_size", "storage"


def open(path: str | os.PathLike[str], **arguments: Any) -> Any:
    """Open a store as the dataset of its kind.

    Images become an LMDBDataset, or a MaskDataset if they have masks; tokens a TokenDataset; arrays an ArrayDataset. To keep a
    store in memory, use RAMDataset.

    Args:
        path: a store made by `fastdata-prep`; a folder, or a URL, with `cache=`.
        arguments: keyword arguments of the dataset, such as `crop=`, `hflip=` and `size=` for images, `block_size=` for tokens.

    Raises:
        StoreError: there is no such store, or it is not finished.
        FormatError: it is damaged, or of a newer version.
        TypeError: the dataset does not take an argument, or needs one that is missing.
        ValueError: an argument has a wrong value.
    """
    found = locate(path, *(arguments.pop(name, None) for name in CACHED))
    manifest = read_current(Path(found))[1]
    return kinds.find(manifest.kind).dataset(manifest)(found, **arguments)


def described(path: str | os.PathLike[str], manifest: Manifest) -> str:
    """Describe a store in a message."""
    return f"{path}, which holds {kinds.find(manifest.kind).described(manifest)}"
