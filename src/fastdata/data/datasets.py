"""The datasets that a user makes: images of a store on disk, with their masks, or held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastdata.data.crops import Crop
from fastdata.data.images import ImageDataset
from fastdata.data.masks import Masks
from fastdata.data.records import FileImages, StoreImages, into_memory
from fastdata.data.view import Transform, View

__all__ = ["LMDBDataset", "MaskDataset", "RAMDataset"]


class LMDBDataset(ImageDataset):
    """Images of a store, read from disk through LMDB.

    Args:
        path: a store made by `fastdata-prep`.
        size: which stored size; None: the largest.
        crop: RandomResizedCrop, CenterCrop, RandomCrop or Resize; None: the whole image.
        hflip, vflip: probability of a flip.
        transform: a function of your own, from and to a uint8 (or uint16) array [H, W, C], after crop and flips, in the worker.
            Under the Loader, what it draws from random, numpy.random or torch is then seeded by (seed, epoch, sample) too.

    Raises:
        StoreError: there is no such store, or it is not finished, or has no such size.
        FormatError: it is damaged, or of a newer version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        crop: Crop | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(StoreImages(path, size), View(crop, hflip, vflip, transform))


class MaskDataset(ImageDataset):
    """Images and their masks of classes, of a store that was prepared with `--masks`, read from disk.

    `ds[i]` is (image, mask): uint8 or uint16 [C, H, W], and uint8 or uint16 [H, W], the class of each pixel. Both come from the
    same box with the same flips. Where the image is averaged or interpolated, each new pixel of a mask takes the class that lies in
    its middle. A `Loader` delivers masks as [B, H, W].

    Args:
        path: the store.
        size: which stored size; None: the largest.
        crop: RandomResizedCrop, CenterCrop, RandomCrop or Resize; None: the whole image.
        hflip, vflip: probability of a flip.
        ignore_index: the class of pixels outside of the image, where a crop is padded; None: 255, or 65535 for uint16 masks.

    Raises:
        StoreError: there is no such store, or it is not finished, or has no such size or no masks.
        FormatError: it is damaged, or of a newer version.
        ValueError: a wrong argument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        crop: Crop | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        images, masks = StoreImages(path, size), StoreImages(path, size, mask=True)
        super().__init__(images, View(crop, hflip, vflip), Masks.of(images, masks, ignore_index))


class RAMDataset(ImageDataset):
    """Images held in memory, once for all processes, in memory that vanishes with them.

    Emits what LMDBDataset emits; of a store with masks, what MaskDataset emits.

    Args:
        source: a store, or a list of image files of any format (they come as RGB, upright).
        targets: for a list of files: int classes [n], or float vectors [n, columns]; None: -1 for each.
        size, crop, hflip, vflip, transform: as for LMDBDataset.
        decoded: hold pixels instead of compressed bytes: many times the memory, no decoding.
        max_bytes: hold no more than this; the other images are read from disk when they are needed. The samples are the same.
        masks: False: of a store with masks, what LMDBDataset emits.
        ignore_index: of a store with masks, as for MaskDataset.

    Raises:
        StoreError: the images don't fit into the memory that is free (a container's limit included), or can't be read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        targets: Any = None,
        *,
        size: int | None = None,
        crop: Crop | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
        decoded: bool = False,
        max_bytes: int | None = None,
        masks: bool = True,
        ignore_index: int | None = None,
    ) -> None:
        sources: list[StoreImages | FileImages]
        found: Masks | None = None
        if isinstance(source, str | os.PathLike):
            if targets is not None:
                raise ValueError("targets go with a list of files; a store has its own")
            images = StoreImages(source, size)
            sources = [images]
            if masks and images.store.manifest.masks:
                beside = StoreImages(source, size, mask=True)
                sources, found = [images, beside], Masks.of(images, beside, ignore_index)
        else:
            if size is not None:
                raise ValueError(f"size is {size}, but image files have their own size; size goes with a store: prepare one")
            sources = [FileImages(source, targets)]
        if ignore_index is not None and found is None:
            raise ValueError(f"ignore_index is {ignore_index}, but there are no masks; it goes with a store that has some")
        held = into_memory(sources, decoded=decoded, max_bytes=max_bytes)
        super().__init__(held[0], View(crop, hflip, vflip, transform), found and replace(found, source=held[1]))
