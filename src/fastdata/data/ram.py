"""Datasets of every kind, in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.data.opening import CACHED, check_arguments, described
from fastdata.remote.reader import locate
from fastdata.store.format import read_current

__all__ = ["RAMDataset", "StrPath"]

StrPath = str | os.PathLike[str]


class RAMDataset:
    """A store of any kind, or a list of image files, in memory that all processes share and that is freed with the last of them.

    It yields the same samples, bit for bit, as the dataset that reads this kind from disk (LMDBDataset, MaskDataset, TokenDataset,
    or ArrayDataset), takes that dataset's arguments by name, and has its attributes. The object is a RAMImages,
    RAMTokens or RAMArrays, depending on the store. These are subclasses of RAMDataset; derive from one of them.

    Args:
        source: a store (a folder, or a URL), or a list of image files of any format (read as RGB, upright).
        targets: for a list of files: int classes [n], or float vectors [n, columns]; None: -1 for each.
        size: for images: the stored size; None: the largest. Several sizes are all kept: this dataset reads the first, and
            `with_size`, and a Loader's `schedule`, choose among the others.
        crop, hflip, vflip, transform: for images, as for LMDBDataset.
        decoded: for images: keep pixels instead of compressed bytes, for many times the memory and no decoding.
        masks: for images: False reads a store with masks as images with their labels, or -1 without labels.
        check: for images: "first" compares each record with its checksum when it is read from the store; None: do not.
        fields, min_visible, images: for images, as for LMDBDataset. Columns are not copied: they are mapped from the store's files.
        ignore_index: for a store with masks, as for MaskDataset or ArrayDataset.
        block_size, mode, documents: for tokens, as for TokenDataset.
        crop, flips: for arrays, as for ArrayDataset.
        max_bytes: keep no more than this in memory, and read the rest from disk when needed; the samples are the same.
        cache, cache_size, storage: for a URL, as for LMDBDataset.
        shared: hold a store once for all processes of this user on this machine that hold it, such as the 8 ranks of torchrun: the
            first one reads it, the others wait and attach, and the memory stays until the last of them ends. False: each process
            has a copy for itself and its children, as has one with a list of files.

    Raises:
        StoreError: there is no such store, or it does not fit into free memory (a container's limit included).
        FormatError: it is damaged, or of a newer version.
        TypeError: this kind of data does not take an argument.
        ValueError: an argument has a wrong value.
    """

    def __new__(cls, source: StrPath | Sequence[StrPath] = (), targets: Any = None, **options: Any) -> Any:
        if cls is not RAMDataset:  # a subclass, for instance when it is unpickled
            return super().__new__(cls)
        if not isinstance(source, str | os.PathLike):
            kind, what = kinds.find("images"), "a list of files"
        else:
            place = locate(source, *(options.get(name) for name in CACHED))
            manifest = read_current(Path(place))[1]
            kind, what = kinds.find(manifest.kind), described(source, manifest)
            if targets is not None:
                raise ValueError("targets go with a list of files; a store has its own")
        subclass = kind.in_memory()
        check_arguments(subclass.__init__, options, what, others=("self", "source", "targets"))
        return super().__new__(subclass)
