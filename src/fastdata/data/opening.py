"""fastdata.open, which opens a store as the dataset of its kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.remote.reader import locate
from fastdata.store.format import Manifest, read_current

__all__ = ["check_arguments", "described", "open"]


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
    dataset = kinds.find(manifest.kind).dataset(manifest)
    check_arguments(dataset, arguments, described(path, manifest))
    return dataset(found, **arguments)


def described(path: str | os.PathLike[str], manifest: Manifest) -> str:
    """Describe a store in a message."""
    return f"{path}, which holds {kinds.find(manifest.kind).described(manifest)}"


def check_arguments(function: Callable[..., Any], names: Iterable[str], what: str, *, others: Iterable[str] = ()) -> None:
    """Raise a TypeError that names an argument that `function` does not take, or needs. others: parameters to ignore."""
    parameters = {name: p for name, p in inspect.signature(function).parameters.items() if name not in {"path", *others}}
    if unknown := set(names) - parameters.keys():
        raise TypeError(f"{min(unknown)} is not an argument for {what}: it takes {', '.join(sorted(parameters)) or 'no other'}")
    if missing := [name for name, p in parameters.items() if p.default is p.empty and name not in names]:
        example = {"block_size": ", the tokens of a row, such as block_size=1024"}.get(missing[0], "")
        raise TypeError(f"{missing[0]} is missing for {what}: give {missing[0]}{example}")
