"""fastdata.open: a store becomes the dataset of its kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.store.format import Manifest, read_manifest

__all__ = ["check_arguments", "described", "open"]


def open(path: str | os.PathLike[str], **arguments: Any) -> Any:
    """Open a store as the dataset of its kind.

    Images become an LMDBDataset, or a MaskDataset if they have masks; tokens a TokenDataset; arrays an ArrayDataset; a table a
    TableDataset. To hold a store in memory, make a RAMDataset of it.

    Args:
        path: a store made by `fastdata-prep`.
        arguments: what the dataset takes, by name: `crop=`, `hflip=` and `size=` of images, `block_size=` of tokens.

    Raises:
        StoreError: there is no such store, or it is not finished.
        FormatError: it is damaged, or of a newer version.
        TypeError: an argument that this dataset does not have, or lacks.
        ValueError: a wrong value.
    """
    manifest = read_manifest(Path(path))
    made = kinds.find(manifest.kind).dataset(manifest)
    check_arguments(made, arguments, described(path, manifest))
    return made(path, **arguments)


def described(path: str | os.PathLike[str], manifest: Manifest) -> str:
    """What a store is, for messages."""
    return f"{path}, which holds {kinds.find(manifest.kind).described(manifest)}"


def check_arguments(made: Callable[..., Any], given: Iterable[str], what: str, *, others: Iterable[str] = ()) -> None:
    """Raise a TypeError that names what `made` does not take, or lacks. others: its first arguments, which are not in question."""
    parameters = {name: p for name, p in inspect.signature(made).parameters.items() if name not in {"path", *others}}
    if unknown := set(given) - parameters.keys():
        raise TypeError(f"{min(unknown)} is no argument for {what}: that takes {', '.join(sorted(parameters)) or 'no other'}")
    if missing := [name for name, p in parameters.items() if p.default is p.empty and name not in given]:
        example = {"block_size": ", the tokens of a row, such as block_size=1024"}.get(missing[0], "")
        raise TypeError(f"{missing[0]} is missing for {what}: give {missing[0]}{example}")
