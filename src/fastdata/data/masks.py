"""The masks of a store's images, as a source beside that of the images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastdata.data.records import Images, StoreImages
from fastdata.errors import FormatError

__all__ = ["Masks"]


@dataclass(frozen=True)
class Masks:
    """Masks of classes, numbered as the images are that they belong to.

    Attributes:
        source: where they come from.
        names: of the classes, where a palette told them.
        pixels: dict of class: pixels, counted in all masks of the store, as they were before preparing.
        ignore_index: the class of pixels outside of an image.
    """

    source: Images
    names: tuple[str, ...]
    pixels: dict[int, int]
    ignore_index: int

    @classmethod
    def of(cls, images: StoreImages, source: StoreImages, ignore_index: int | None) -> Masks:
        """The masks of images of a store. ignore_index: None: the largest class that their type holds.

        Raises:
            FormatError: they have other sizes than the images.
            ValueError: such a mask can't hold `ignore_index`.
        """
        everything = np.arange(len(images))
        if images.form.planes or not all(map(np.array_equal, images.sides(everything), source.sides(everything))):
            raise FormatError(f"{images.store.path}: its masks have not the sizes of its images; prepare it again")
        largest = int(np.iinfo(source.form.dtype).max)
        outside = largest if ignore_index is None else ignore_index
        if not isinstance(outside, int) or not 0 <= outside <= largest:
            raise ValueError(f"ignore_index is {ignore_index}, but a {source.form.dtype} mask holds 0 to {largest}")
        told = source.store.manifest.masks
        pixels = {int(k): count for k, count in told.pixels.items()} if told else {}
        return cls(source, told.names if told else (), pixels, outside)

    def with_size(self, size: int | None) -> Masks:
        return replace(self, source=self.source.with_size(size))
