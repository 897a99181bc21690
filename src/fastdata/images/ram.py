"""The dataset of images held in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import cv2
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

Array = np.ndarray[Any, np.dtype[Any]]


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
        held: list[Sequence[StoreImages | FileImages]]
        if isinstance(source, str | os.PathLike):
            source = locate(source, cache, cache_size, storage)
            sizes, expected = _check_sizes(size), Store(source).manifest.xxh3_128
            opened = [open_images(source, one, images, expected, check) for one in sizes]
            (stored, names), sources = opened[0], opened[0][0]
            held = [*zip(*(images for images, _ in opened), strict=True)]
            if masks and fields is None and stored[0].store.manifest.section("masks"):
                mask_images = [stored[0].like(one, mask=True) for one in sizes]
                found = Masks.of(stored[0], mask_images[0], ignore_index)
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
        _hold(held, decoded=decoded, max_bytes=max_bytes, shared=shared)
        super().__init__(sources, Views(crop, hflip, vflip, transform), found, Fields.of(fields, sources[0], min_visible), names)


def _check_sizes(size: int | Sequence[int] | None) -> list[int | None]:
    """Return the sizes to hold.

    Raises:
        ValueError: if there is no size, or one twice.
    """
    sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
    return sizes


def _hold(
    sources: Sequence[Sequence[StoreImages | FileImages]],
    *,
    decoded: bool = False,
    max_bytes: int | None = None,
    shared: bool = False,
) -> None:
    """Load sources into memory: as many of the first samples as fit, the same number of each source.

    Args:
        sources: lists of images, and perhaps of their masks and other images. A list has the same images in several sizes.
        decoded: hold pixels instead of encoded bytes.
        max_bytes: limit for all sources together; None: everything must fit.
        shared: hold what comes from a store once for all processes of this machine.

    Raises:
        StoreError: if it does not fit into free memory.
    """
    nbytes = [[_nbytes(source, decoded) for source in alike] for alike in sources]
    count = how_many(np.sum([each for some in nbytes for each in some], axis=0), max_bytes)
    for alike, sizes in zip(sources, nbytes, strict=True):
        by_size: dict[int | None, Held] = {}
        for source, each in zip(alike, sizes, strict=True):
            source.hold(each[:count], decoded, _key(source, decoded) if shared else None)
            if isinstance(source, StoreImages):
                by_size[source.variant.size] = source.held
                source.by_size = by_size


def _key(source: StoreImages | FileImages, decoded: bool) -> str | None:
    """Return what equal bytes in memory have in common; None: unknown, since files may change."""
    if isinstance(source, FileImages):
        return None
    decoder = cv2.getBuildInformation() if decoded else ""  # another one may give other pixels
    return repr((source.store.identity(source.variant), decoder))


def _nbytes(source: StoreImages | FileImages, decoded: bool) -> Array:
    """Return the bytes that each image takes in memory."""
    if decoded:
        heights, widths = source.sides(np.arange(len(source)))
        return np.asarray(source.form.nbytes(heights * widths))
    if isinstance(source, FileImages):
        return source.nbytes
    return source.store.index(source.variant).lengths
