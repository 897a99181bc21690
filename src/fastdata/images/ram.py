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
from fastdata.images.masks import ignored_class
from fastdata.images.records import FileImages, StoreImages
from fastdata.images.stored import open_images
from fastdata.images.view import Transform
from fastdata.remote.reader import locate
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
        check: str | None = "first",
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
        shared: bool = True,
    ) -> None:
        masks_of: StoreImages | None = None
        names: tuple[str, ...] = ()
        sources: Sequence[StoreImages | FileImages]
        held: list[StoreImages | FileImages]
        if isinstance(source, str | os.PathLike):
            source = locate(source, cache, cache_size, storage)
            sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
            if not sizes or len(set(sizes)) < len(sizes):
                raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
            stored, names = open_images(source, sizes[0], images, check)
            sources, held = stored, [*stored]
            if masks and fields is None and stored[0].store.manifest.section("masks"):
                masks_of = stored[0].like(sizes[0], mask=True, image="")
                ignore_index = ignored_class(masks_of, ignore_index)
                held.append(masks_of)
            held += [one.with_size(other) for other in sizes[1:] for one in held]
        else:
            if size is not None:
                raise ValueError(f"size is {size}, but image files have their own size; size goes with a store: prepare one")
            if images is not None:
                raise ValueError(f"images is {images!r}, but image files are one image each; images goes with a store")
            sources = held = [FileImages(source, targets)]
        if ignore_index is not None and masks_of is None:
            raise ValueError(f"ignore_index is {ignore_index}, but there are no masks; it goes with a store that has some")
        nbytes = [one.memory(decoded) for one in held]
        count = how_many(np.sum(nbytes, axis=0), max_bytes)  # as many of each
        for one, each in zip(held, nbytes, strict=True):
            one.hold(each[:count], decoded, shared)
        chosen = Fields.of(fields, sources[0], min_visible)
        view: dict[str, Any] = {"crop": crop, "hflip": hflip, "vflip": vflip, "transform": transform}
        super().__init__(sources, names, masks=masks_of, ignore_index=ignore_index, fields=chosen, **view)
