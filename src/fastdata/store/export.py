"""Export a store as ordinary files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fastdata import kinds
from fastdata.errors import StoreError
from fastdata.options import as_option
from fastdata.store.store import Store

__all__ = ["export"]


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
    """Write a store as files that other programs read.

    Images: JPEG and PNG records are copied as they are stored; raw pixels become PNG. Each class becomes a folder; float
    labels go to `labels.csv`, in the form that `--labels` reads. Files keep their names, with the extension of their new format; a
    name that occurs again gets a number. Images with masks go to `images`, their masks to `masks`, as PNG with the same names. Of
    several images a sample, each goes to a folder of its name.
    Columns go to `metadata.jsonl` next to the images: an object in each line, with the `file_name`. Boxes and keypoints are in
    pixels of the exported images. A warning says what a format has no place for.

    Args:
        path: the store.
        out: a folder that is empty or does not exist.
        to: the format; None: the first of its kind. Images: "imagefolder", as above, or "webdataset": tars, see
            `fastdata.images.webdataset`. Tokens: "nanogpt", see `export_tokens`. Arrays: "npy".
        size: the variant; None: the largest.
        shard_size: the largest size of a tar in bytes; None: 1 GB.
        val_fraction: for "nanogpt", the fraction of the tokens, at the end, that goes to val.bin; 0: no val.bin; None: 0.1.
        tick: called with 1 for each sample.

    Returns:
        The number of samples; for tokens, of files.

    Raises:
        StoreError: the files cannot be written, or the format cannot hold the samples.
        ValueError: an argument is wrong, or belongs to another format.
    """
    store, root = Store(path, kind=None), Path(out)
    kind = store.kind
    format = to or kind.exports[0]
    if format not in kind.exports:
        raise ValueError(f"--to is {to!r}, but {path} holds {kind.name}, which go to {', '.join(kind.exports)}")
    options = {"shard_size": shard_size, "val_fraction": val_fraction}
    for name, value in options.items():
        if value is not None and kind.export_options.get(name) != format:
            goes_with = next(k.export_options[name] for k in map(kinds.find, kinds.NAMES) if name in k.export_options)
            raise ValueError(f"{as_option(name)} goes with --to {goes_with}, but {path} is exported to {format}: leave it out")
    if shard_size is not None and shard_size < 1:
        raise ValueError(f"--shard-size is {shard_size}, but must be positive")
    if val_fraction is not None and not 0 <= val_fraction < 1:
        raise ValueError(f"--val-fraction is {val_fraction}, but must be from 0 to less than 1")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StoreError(f"export to {root}: it exists and is not an empty folder; choose another")
    try:
        return kind.export(store, root, format, size, tick, options)
    except OSError as error:
        raise StoreError(f"export to {root}: {error}") from error
