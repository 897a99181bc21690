"""Images with masks: the same box and flips for both."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastdata.data.crops import Crop
from fastdata.data.images import ImageDataset
from fastdata.data.records import StoreImages
from fastdata.data.rendering import Allocate, Timing, render_masks
from fastdata.data.view import View
from fastdata.errors import FormatError

__all__ = ["MaskDataset"]

Array = np.ndarray[Any, np.dtype[Any]]


class MaskDataset(ImageDataset):
    """Images and their masks of classes, of a store that was prepared with `--masks`.

    `ds[i]` is (image, mask): uint8 or uint16 [C, H, W], and uint8 or uint16 [H, W], the class of each pixel. Both come from the
    same box with the same flips. Where the image is averaged or interpolated, each new pixel of a mask takes the class that lies in
    its middle. A `Loader` delivers masks as [B, H, W].

    Args:
        path: the store.
        size: which stored size; None: the largest.
        crop: RandomResizedCrop, CenterCrop, RandomCrop or Resize; None: the whole image.
        hflip, vflip: probability of a flip.
        ignore_index: the class of pixels outside of the image, where a crop is padded; None: 255, or 65535 for uint16 masks.

    Attributes:
        classes: names of the classes, where a palette told them.
        class_pixels: dict of class: pixels, counted in all masks of the store, also those that a subset leaves out, as they were
            before preparing. To weight a loss with.
        targets: of the images, as LMDBDataset has them; not the masks.

    Raises:
        StoreError: there is no such store, or it is not finished, or has no such size or no masks.
        FormatError: it is damaged, or of a newer version.
        ValueError: a wrong argument.
    """

    joins = False  # `+` is torch's own, item by item
    large_targets = True

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
        images, self._masks = StoreImages(path, size), StoreImages(path, size, mask=True)
        super().__init__(images, View(crop, hflip, vflip))
        everything = np.arange(len(images))
        if images.form.planes or not all(map(np.array_equal, images.sides(everything), self._masks.sides(everything))):
            raise FormatError(f"{path}: its masks have not the sizes of its images; prepare it again")
        largest = np.iinfo(self._masks.form.dtype).max
        self.ignore_index = int(largest) if ignore_index is None else ignore_index
        if not isinstance(self.ignore_index, int) or not 0 <= self.ignore_index <= largest:
            raise ValueError(f"ignore_index is {ignore_index}, but a {self._masks.form.dtype} mask holds 0 to {largest}")

    @property
    def classes(self) -> list[str]:
        masks = self._masks.store.manifest.masks
        return list(masks.names) if masks else []

    @property
    def class_pixels(self) -> dict[int, int]:
        masks = self._masks.store.manifest.masks
        return {int(k): count for k, count in masks.pixels.items()} if masks else {}

    def _targets_of(self, rows: Array, u: Array, allocate: Allocate, timing: Timing | None) -> Array:
        return render_masks(self._masks, self.view, rows, u, self.ignore_index, allocate, timing)

    def sample_bytes(self) -> int:
        pixels = self._most_pixels()
        return int(self._images.form.nbytes(pixels) + self._masks.form.nbytes(pixels))

    def with_size(self, size: int | None) -> Any:
        return self._like(_images=self._images.with_size(size), _masks=self._masks.with_size(size))

    def with_crop(self, crop: Crop | None, *, hflip: float = 0.0, vflip: float = 0.0) -> Any:  # type: ignore[override]
        """The same samples with another crop and other flips: what a validation set needs after `split`."""
        return self._like(view=View(crop, hflip, vflip))
