"""Datasets of the images of a store, with or without masks, on disk or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.data.in_memory import how_many
from fastdata.data.opening import RAMDataset
from fastdata.errors import StoreError
from fastdata.images.crops import Crop
from fastdata.images.dataset import Fields, ImageDataset
from fastdata.images.records import FileImages, StoreImages
from fastdata.images.view import AnyCrop, Transform, View
from fastdata.remote.bucket import Storage
from fastdata.remote.reader import locate
from fastdata.types import StrPath


def _open_images(path: StrPath, size: int | None, chosen: str | Sequence[str] | None) -> tuple[list[StoreImages], tuple[str, ...]]:
    """Open the images of each sample, as for LMDBDataset, and return them with their names, which are () for one image."""
    if isinstance(chosen, str):
        return [StoreImages(path, size, image=chosen)], ()
    opened = StoreImages(path, size)
    names = opened.store.manifest.images if chosen is None else tuple(chosen)
    if chosen is None and not names:
        return [opened], ()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"images is {chosen!r}, but must be the name of an image, or different names, such as ('left', 'right')")
    return [opened.with_size(size, image=name) for name in names], names


class LMDBDataset(ImageDataset):
    """The images of a store, read from disk through LMDB.

    Args:
        path: a store made by `fastdata-prep`; a folder, or a URL.
        size: the stored size to read, or None for the largest.
        crop: RandomResizedCrop, RandomScaleCrop, CenterCrop, RandomCrop, Resize, your own Crop, or None for all of it. A list,
            or a MultiCrop, makes several views of each image: a sample's image is then a tuple, with random numbers and flips of
            its own for each view. `View` gives a view its own flips and transform.
        hflip, vflip: probability of a flip.
        transform: your own function, called in the worker after crop and flips. It takes a uint8 (or uint16) array [H, W, C] and
            returns an array [H, W, C], or a tensor [C, H, W] on the CPU. If its parameter is annotated with torch.Tensor or
            PIL.Image.Image, it gets a tensor [C, H, W] or a PIL image. An nn.Module gets a tensor; transforms of torchvision,
            kornia, albumentations and timm are called in their own way. Under the Loader, random, numpy.random, torch and
            generators in its attributes, closure and globals are seeded by (seed, epoch, sample).
        fields: columns to emit as targets, in place of labels: one name, for its value alone, or several, for a dict. Columns are
            what `fastdata-prep` stored, and "label". Numbers are batched to tensors [B, ...], lists to a `Ragged`, text, bytes and
            JSON to Python lists; torch's DataLoader does the same. Boxes (x1, y1, x2, y2) and keypoints
            (x, y, visibility) are in pixels of the emitted image: they follow its resize, crop and flips. Boxes are clipped to it;
            keypoints outside of it become (0, 0, 0), and "left_..." and "right_..." change places in a mirror image.
        min_visible: the share of a box that must lie in the emitted image; other instances, and all whose boxes lie outside of
            it, are dropped from all columns that describe them.
        images: for a store with several images a sample: those to emit. One name gives the image alone; several give a dict; None:
            all of them, as a dict.
        cache, cache_size, storage: for a URL, such as s3://bucket/photos.fds: the folder for shards on a local disk, the most bytes
            in it, such as "200GB", and options of the client: see docs/remote.md.

    Raises:
        StoreError: if the store does not exist, is not finished, lacks this size, or has masks and no labels.
        FormatError: if the store is damaged, or was written by a newer version.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        size: int | None = None,
        crop: AnyCrop = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
        fields: str | Sequence[str] | None = None,
        min_visible: float = 0.0,
        images: str | Sequence[str] | None = None,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        path = locate(path, cache, cache_size, storage)
        sources, names = _open_images(path, size, images)
        first = sources[0]
        if fields is None and first.store.manifest.section("masks") and first.labels.kind == "none":
            raise StoreError(
                f"{path} has masks and no labels, so each target would be -1: use MaskDataset for images with their masks, or "
                "RAMDataset(masks=False) for images alone"
            )
        chosen = Fields.of(fields, first, min_visible)
        super().__init__(sources, names, fields=chosen, crop=crop, hflip=hflip, vflip=vflip, transform=transform)


class MaskDataset(ImageDataset):
    """The images of a store that was prepared with `--masks`, and their class masks, read from disk.

    `ds[i]` is (image, mask): uint8 or uint16 [C, H, W], and uint8 or uint16 [H, W], the class of each pixel. Both come from the
    same box with the same flips. The image is averaged or interpolated; each pixel of the resized mask takes the class at its
    centre. A `Loader` delivers masks as [B, H, W].

    Args:
        path, size, hflip, vflip, images, cache, cache_size, storage: as for LMDBDataset.
        crop: a crop, or None for the whole image.
        ignore_index: the class of pixels outside the image, where a crop is padded; None: 255, or 65535 for uint16 masks. Pixels of
            class 255 next to two or more other classes count as void, as in public data sets. Other pixels of the default class
            are an error: pass their class if a loss is to ignore them, another number if not.

    Raises:
        StoreError, FormatError: as for LMDBDataset, or the store has no masks.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        size: int | None = None,
        crop: Crop | View | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        ignore_index: int | None = None,
        images: str | Sequence[str] | None = None,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        path = locate(path, cache, cache_size, storage)
        sources, names = _open_images(path, size, images)
        masks = sources[0].with_size(size, mask=True, image="")
        outside = masks.store.manifest.section("masks").outside(ignore_index, masks.form.dtype)
        super().__init__(sources, names, masks=masks, ignore_index=outside, crop=crop, hflip=hflip, vflip=vflip)


class RAMImages(RAMDataset, ImageDataset):
    """Images held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        targets: Any = None,
        *,
        size: int | Sequence[int] | None = None,
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
        **view: Any,
    ) -> None:
        masks_of, names = None, tuple[str, ...]()
        sources: Sequence[StoreImages | FileImages]
        held: list[StoreImages | FileImages]
        if isinstance(source, str | os.PathLike):
            source = locate(source, cache, cache_size, storage)
            sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
            if not sizes or len(set(sizes)) < len(sizes):
                raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
            stored, names = _open_images(source, sizes[0], images)
            sources, held = stored, [*stored]
            if masks and fields is None and stored[0].store.manifest.section("masks"):
                masks_of = stored[0].with_size(sizes[0], mask=True, image="")
                ignore_index = masks_of.store.manifest.section("masks").outside(ignore_index, masks_of.form.dtype)
                held.append(masks_of)
            held += [one.with_size(other) for other in sizes[1:] for one in held]
        else:
            for name, value in (("size", size), ("images", images)):
                if value is not None:
                    raise ValueError(f"{name} is {value!r}, but a file is one image of one size: {name}= is for stores")
            sources = held = [FileImages(source, targets)]
        if ignore_index is not None and masks_of is None:
            raise ValueError(f"ignore_index is {ignore_index}, but the dataset has no masks: leave it out")
        nbytes = [one.memory(decoded) for one in held]
        count = how_many(np.sum(nbytes, axis=0), max_bytes)  # as many of each
        for one, each in zip(held, nbytes, strict=True):
            one.hold(each[:count], decoded, shared)
        chosen = Fields.of(fields, sources[0], min_visible)
        super().__init__(sources, names, masks=masks_of, ignore_index=ignore_index, fields=chosen, **view)
