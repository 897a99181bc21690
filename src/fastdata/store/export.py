"""export: a store becomes ordinary files again, in class folders or in tars."""

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
    """Write a store as files that others read: of images, JPEG and PNG records as they are stored, raw pixels and planes as PNG.

    Classes become folders; float labels go to `labels.csv`, in the form that `--labels` reads. Names stay, with the ending of
    what the file now is; of two that would be the same, the later gets a number. Of a store with masks, the images go to
    `images`, and the masks to `masks` under the same names, as PNG.

    Args:
        path: the store.
        out: a folder that is empty or does not exist.
        to: of images: "imagefolder" (None stands for it), as above, or "webdataset": tars, see `fastdata.images.webdataset`. Of
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
    kind, format = store.kind, to or store.kind.exports[0]
    if format not in kind.exports:
        raise ValueError(f"--to is {to!r}, but {path} holds {kind.name}, which go to {', '.join(kind.exports)}")
    options = {"shard_size": shard_size, "val_fraction": val_fraction}
    for name, value in options.items():
        if value is not None and kind.export_options.get(name) != format:
            goes_with = next(k.export_options[name] for k in map(kinds.find, kinds.names()) if name in k.export_options)
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
