"""The dataset of images held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.data.in_memory import how_many
from fastdata.data.opening import RAMDataset, StrPath
from fastdata.images.crops import Crop
from fastdata.images.dataset import ImageDataset
from fastdata.images.fields import Fields
from fastdata.images.masks import Masks
from fastdata.images.records import FileImages, Held, StoreImages
from fastdata.images.stored import open_images
from fastdata.images.view import Transform, Views
from fastdata.remote.reader import locate
from fastdata.remote.url import Storage
from fastdata.store.store import Store

__all__ = ["RAMImages"]


class RAMImages(RAMDataset, ImageDataset):
    """Images held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        targets: Any = None,
        *,
        size: int | Sequence[int] | None = None,
        crop: Crop | Sequence[Crop] | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
        decoded: bool = False,
        max_bytes: int | None = None,
        masks: bool = True,
        ignore_index: int | None = None,
        fields: str | Sequence[str] | None = None,
        min_visible: float = 0.0,
        images: str | Sequence[str] | None = None,
        check: str | None = "first",
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
        shared: bool = True,
    ) -> None:
        found: Masks | None = None
        names: tuple[str, ...] = ()
        sources: Sequence[StoreImages | FileImages]
        held: list[Sequence[StoreImages | FileImages]]  # each: the same images in several sizes
        if isinstance(source, str | os.PathLike):
            source = locate(source, cache, cache_size, storage)
            sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
            if not sizes or len(set(sizes)) < len(sizes):
                raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
            expected = Store(source).manifest.xxh3_128
            opened = [open_images(source, one, images, expected, check) for one in sizes]
            (stored, names), sources = opened[0], opened[0][0]
            held = [*zip(*(images for images, _ in opened), strict=True)]
            if masks and fields is None and stored[0].store.manifest.section("masks"):
                mask_images = [stored[0].like(one, mask=True) for one in sizes]
                found = Masks.of(mask_images[0], ignore_index)
                held.append(mask_images)
        else:
            if size is not None:
                raise ValueError(f"size is {size}, but image files have their own size; size goes with a store: prepare one")
            if images is not None:
                raise ValueError(f"images is {images!r}, but image files are one image each; images goes with a store")
            sources = [FileImages(source, targets)]
            held = [sources]
        if ignore_index is not None and found is None:
            raise ValueError(f"ignore_index is {ignore_index}, but there are no masks; it goes with a store that has some")
        nbytes = [[source.memory(decoded) for source in alike] for alike in held]
        count = how_many(np.sum([each for some in nbytes for each in some], axis=0), max_bytes)  # as many of each source
        for alike, taken in zip(held, nbytes, strict=True):
            by_size: dict[int | None, Held] = {}
            for held_one, each in zip(alike, taken, strict=True):
                held_one.hold(each[:count], decoded, shared)
                if isinstance(held_one, StoreImages):
                    by_size[held_one.variant.size] = held_one.held
                    held_one.by_size = by_size
        super().__init__(sources, Views(crop, hflip, vflip, transform), found, Fields.of(fields, sources[0], min_visible), names)
