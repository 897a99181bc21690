"""Datasets of every kind, held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastdata.data.arrays import ArrayDataset
from fastdata.data.chunked import hold
from fastdata.data.crops import Crop
from fastdata.data.images import ImageDataset
from fastdata.data.masks import Masks
from fastdata.data.opening import check_arguments, described
from fastdata.data.records import FileImages, StoreImages, into_memory
from fastdata.data.tables import TableDataset
from fastdata.data.token_memory import TokenMemory
from fastdata.data.tokens import TokenDataset
from fastdata.data.view import Transform, View
from fastdata.store.format import read_manifest
from fastdata.store.store import Store

__all__ = ["RAMArrays", "RAMDataset", "RAMImages", "RAMTable", "RAMTokens"]

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
            kind, what = "images", "a list of files"
        else:
            manifest = read_manifest(Path(source))
            kind, what = manifest.kind, described(source, manifest)
            if targets is not None:
                raise ValueError("targets go with a list of files; a store has its own")
        made: Any = {"images": RAMImages, "tokens": RAMTokens, "arrays": RAMArrays, "table": RAMTable}[kind]
        check_arguments(made.__init__, options, what, others=("self", "source", "targets"))
        return super().__new__(made)


class RAMImages(RAMDataset, ImageDataset):
    """Images held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        targets: Any = None,
        *,
        size: int | Sequence[int] | None = None,
        crop: Crop | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
        decoded: bool = False,
        max_bytes: int | None = None,
        masks: bool = True,
        ignore_index: int | None = None,
    ) -> None:
        sources: list[Sequence[StoreImages | FileImages]]
        found: Masks | None = None
        if isinstance(source, str | os.PathLike):
            images = [StoreImages(source, one) for one in _several(size)]
            sources = [images]
            if masks and images[0].store.manifest.masks:
                beside = [StoreImages(source, one, mask=True) for one in _several(size)]
                sources, found = [images, beside], Masks.of(images[0], beside[0], ignore_index)
        else:
            if size is not None:
                raise ValueError(f"size is {size}, but image files have their own size; size goes with a store: prepare one")
            sources = [[FileImages(source, targets)]]
        if ignore_index is not None and found is None:
            raise ValueError(f"ignore_index is {ignore_index}, but there are no masks; it goes with a store that has some")
        held = into_memory(sources, decoded=decoded, max_bytes=max_bytes)
        super().__init__(held[0], View(crop, hflip, vflip, transform), found and replace(found, source=held[1]))


def _several(size: int | Sequence[int] | None) -> list[int | None]:
    """The sizes to hold.

    Raises:
        ValueError: there are none, or one comes twice.
    """
    sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
    return sizes


class RAMTokens(RAMDataset, TokenDataset):
    """Tokens held in memory; see RAMDataset."""

    def __init__(
        self, source: StrPath, *, block_size: int, mode: str = "random", documents: str = "join", max_bytes: int | None = None
    ) -> None:
        super().__init__(source, block_size, mode=mode, documents=documents)
        self._memory = TokenMemory(Store(source, "tokens"), held=True, max_bytes=max_bytes)


class RAMArrays(RAMDataset, ArrayDataset):
    """Arrays, and their masks, held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath,
        *,
        crop: Crop | None = None,
        flips: float | Sequence[float] = 0.0,
        ignore_index: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__(source, crop=crop, flips=flips, ignore_index=ignore_index)
        hold([self._arrays] if self._masks is None else [self._arrays, self._masks], max_bytes)


class RAMTable(RAMDataset, TableDataset):
    """A table, which is held in memory anyway; see RAMDataset."""

    def __init__(self, source: StrPath) -> None:
        super().__init__(source)
