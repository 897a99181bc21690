"""Opening a store as the dataset of its kind, on disk or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fastdata import kinds
from fastdata.remote.reader import locate
from fastdata.store.manifest import read_current
from fastdata.types import StrPath

if TYPE_CHECKING:
    from fastdata.images.crops import RandomResizedCrop, RandomScaleCrop, Resize
    from fastdata.images.dataset import ImageDataset
    from fastdata.text.dataset import TokenDataset

CACHED = "cache", "cache_size", "storage"


@overload
def open(path: StrPath, *, crop: RandomResizedCrop | RandomScaleCrop | Resize, **arguments: Any) -> ImageDataset: ...
@overload
def open(path: StrPath, *, block_size: int, **arguments: Any) -> TokenDataset: ...
@overload
def open(path: StrPath, **arguments: Any) -> Any: ...
def open(path: StrPath, **arguments: Any) -> Any:
    """Open a store as the dataset of its kind.

    Images become an LMDBDataset, or a MaskDataset if they have masks; tokens a TokenDataset; arrays an ArrayDataset. To keep a
    store in memory, use RAMDataset.

    Args:
        path: a store made by `fastdata-prep`; a folder, or a URL with `cache=`.
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


class RAMDataset:
    """A store of any kind, or a list of image files, in memory that processes share and that is freed with the last of them.

    It yields the same samples, bit for bit, as the dataset that reads this kind from disk (LMDBDataset, MaskDataset, TokenDataset,
    or ArrayDataset), takes that dataset's arguments by name, and has its attributes. The object is a RAMImages,
    RAMTokens or RAMArrays, depending on the store. These are subclasses of RAMDataset; derive from one of them.

    Args:
        source: a store (a folder, or a URL), or a list of image files of any format (read as RGB, upright).
        targets: for a list of files: int classes [n], or float vectors [n, columns]; by default -1 for each.
        options: arguments of the dataset that reads from disk. `size` may be several stored sizes of images; the first is read
            until `with_size`, or a Loader's `schedule`, chooses another. Columns stay on disk.
        decoded: for images: keep pixels instead of compressed bytes: no decoding, but many times the memory.
        masks: for images: False reads a store with masks as images with their labels, or -1 if the store has no labels.
        max_bytes: keep no more than this in memory, and read the rest from disk when needed; the samples are the same.
        shared: hold a store once for all processes of this user on this machine, such as the 8 ranks of torchrun: the
            first one reads it, the others wait and attach, and the memory stays until the last of them ends. False, or a list of
            files: each process has a copy for itself and its children.

    Raises:
        StoreError: there is no such store, or it does not fit into free memory (a container's limit included).
        FormatError: it is damaged, or of a newer version.
        TypeError: this kind of data does not take an argument.
        ValueError: an argument has a wrong value.
    """

    def __new__(cls, source: StrPath | Sequence[StrPath] = (), targets: Any = None, **options: Any) -> Any:
        if cls is not RAMDataset:  # a subclass, for instance when it is unpickled
            return super().__new__(cls)
        kind, manifest = "images", None
        if isinstance(source, str | os.PathLike):
            if targets is not None:
                raise ValueError("targets go with a list of files; a store has its own: leave targets out")
            manifest = read_current(Path(locate(source, *(options.get(name) for name in CACHED))))[1]
            kind = manifest.kind
        return super().__new__(kinds.find(kind).dataset(manifest, in_memory=True))
