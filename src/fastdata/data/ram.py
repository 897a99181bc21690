"""Datasets of every kind, held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.data.opening import check_arguments, described
from fastdata.store.format import read_manifest

__all__ = ["RAMDataset", "StrPath"]

StrPath = str | os.PathLike[str]


class RAMDataset:
    """A store of any kind held in memory, once for all processes, in memory that vanishes with them; or a list of image files.

    Emits, bit for bit, what the dataset of that kind emits that reads from disk: LMDBDataset, or MaskDataset where there are masks;
    TokenDataset, ArrayDataset or TableDataset. It takes the arguments of that one, by name, and has its attributes. What is
    made is a RAMImages, RAMTokens, RAMArrays or RAMTable, as the store says; all of them are RAMDatasets. Derive from one of these.

    Args:
        source: a store, or a list of image files of any format (they come as RGB, upright).
        targets: for a list of files: int classes [n], or float vectors [n, columns]; None: -1 for each.
        size: of images: which stored size; None: the largest. Or several: all of them are held, the first is this dataset's own,
            and the others are what `with_size`, and a Loader's `schedule` and `set_size`, choose by number.
        crop, hflip, vflip, transform: of images, as for LMDBDataset.
        decoded: of images: hold pixels instead of compressed bytes: many times the memory, no decoding.
        masks: of images, False: of a store with masks, images with their labels; -1 where there are none.
        ignore_index: of a store with masks, as for MaskDataset or ArrayDataset.
        block_size, mode, documents: of tokens, as for TokenDataset.
        crop, flips: of arrays, as for ArrayDataset.
        max_bytes: hold no more than this; the rest is read from disk when it is needed. The samples are the same. Not of tables,
            whose rows are made in memory.

    Raises:
        StoreError: there is no such store, or it does not fit into the memory that is free (a container's limit included).
        FormatError: it is damaged, or of a newer version.
        TypeError: an argument that this kind of data does not have.
        ValueError: a wrong value.
    """

    def __new__(cls, source: StrPath | Sequence[StrPath] = (), targets: Any = None, **options: Any) -> Any:
        if cls is not RAMDataset:  # one of those below, as when it is unpickled
            return super().__new__(cls)
        if not isinstance(source, str | os.PathLike):
            kind, what = kinds.find("images"), "a list of files"
        else:
            manifest = read_manifest(Path(source))
            kind, what = kinds.find(manifest.kind), described(source, manifest)
            if targets is not None:
                raise ValueError("targets go with a list of files; a store has its own")
        made = kind.in_memory()
        if made is None:
            raise TypeError(f"there is no RAMDataset for {what}: open it with {kind.reader}")
        check_arguments(made.__init__, options, what, others=("self", "source", "targets"))
        return super().__new__(made)
