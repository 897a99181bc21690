"""The datasets of images that a user makes of a store on disk, with their masks or without."""

from __future__ import annotations

import os

from fastdata.errors import StoreError
from fastdata.images.crops import Crop
from fastdata.images.dataset import ImageDataset
from fastdata.images.masks import Masks
from fastdata.images.records import StoreImages
from fastdata.images.view import Transform, View

__all__ = ["LMDBDataset", "MaskDataset"]


class LMDBDataset(ImageDataset):
    """Images of a store, read from disk through LMDB.

    Args:
        path: a store made by `fastdata-prep`.
        size: which stored size; None: the largest.
        crop: RandomResizedCrop, CenterCrop, RandomCrop, Resize, or another Crop; None: the whole image.
        hflip, vflip: probability of a flip.
        transform: a function of your own, after crop and flips, in the worker. It gets a uint8 (or uint16) array [H, W, C], and
            returns an array [H, W, C], or a tensor [C, H, W] on the CPU. Annotate its parameter with torch.Tensor or
            PIL.Image.Image, and it gets a tensor [C, H, W] or a PIL image. An nn.Module, such as one of torchvision.transforms.v2,
            gets a tensor; a transform of kornia, albumentations, timm or the old torchvision.transforms what it is made for.
            It may meet the samples of a batch in any order. Under the Loader, what it draws is seeded by (seed, epoch, sample) too:
            from random, numpy.random, torch, and generators of its own that can be found in its attributes, closure and globals.
            It may be set later, as `dataset.transform`.

    Raises:
        StoreError: there is no such store, or it is not finished, has no such size, or has masks in place of labels.
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
        images = StoreImages(path, size)
        if images.store.manifest.section("masks") and images.labels.kind == "none":
            raise StoreError(
                f"{path} has masks and no labels, so that each target would be -1: MaskDataset emits images with their masks, "
                "RAMDataset(masks=False) images alone"
            )
        super().__init__(images, View(crop, hflip, vflip, transform))


class MaskDataset(ImageDataset):
    """Images and their masks of classes, of a store that was prepared with `--masks`, read from disk.

    `ds[i]` is (image, mask): uint8 or uint16 [C, H, W], and uint8 or uint16 [H, W], the class of each pixel. Both come from the
    same box with the same flips. Where the image is averaged or interpolated, each new pixel of a mask takes the class that lies in
    its middle. A `Loader` delivers masks as [B, H, W].

    Args:
        path: the store.
        size: which stored size; None: the largest.
        crop: RandomResizedCrop, CenterCrop, RandomCrop, Resize, or another Crop; None: the whole image.
        hflip, vflip: probability of a flip.
        ignore_index: the class of pixels outside of the image, where a crop is padded; None: 255, or 65535 for uint16 masks. Pixels
            of class 255 beside two classes or more are void, as in public data sets. Else there may be no pixels of the default:
            give the number if a loss is to ignore them, and another one if not.

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
