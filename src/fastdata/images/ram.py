"""The dataset of images held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastdata.data.ram import RAMDataset, StrPath
from fastdata.images.crops import Crop
from fastdata.images.dataset import ImageDataset
from fastdata.images.fields import Fields
from fastdata.images.masks import Masks
from fastdata.images.records import FileImages, StoreImages, hold
from fastdata.images.several import Several, open_images
from fastdata.images.view import Transform, Views
from fastdata.remote.locate import locate
from fastdata.remote.url import Storage

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
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
        shared: bool = True,
    ) -> None:
        found: Masks | None = None
        several = Several()
        first: StoreImages | FileImages
        held: list[Sequence[StoreImages | FileImages]]
        if isinstance(source, str | os.PathLike):
            source = locate(source, cache, cache_size, storage, in_memory=True)
            sizes = _check_sizes(size)
            opened = [open_images(source, one, images) for one in sizes]
            first, several = opened[0]
            held = [*zip(*([images, *some.others] for images, some in opened), strict=True)]
            if masks and fields is None and first.store.manifest.section("masks"):
                mask_images = [StoreImages(source, one, mask=True) for one in sizes]
                found = Masks.of(first, mask_images[0], ignore_index)
                held.append(mask_images)
        else:
            if size is not None:
                raise ValueError(f"size is {size}, but image files have their own size; size goes with a store: prepare one")
            if images is not None:
                raise ValueError(f"images is {images!r}, but image files are one image each; images goes with a store")
            first = FileImages(source, targets)
            held = [[first]]
        if ignore_index is not None and found is None:
            raise ValueError(f"ignore_index is {ignore_index}, but there are no masks; it goes with a store that has some")
        hold(held, decoded=decoded, max_bytes=max_bytes, shared=shared)
        super().__init__(first, Views(crop, hflip, vflip, transform), found, Fields.of(fields, first, min_visible), several)


def _check_sizes(size: int | Sequence[int] | None) -> list[int | None]:
    """Return the sizes to hold.

    Raises:
        ValueError: if there is no size, or one twice.
    """
    sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
    return sizes
