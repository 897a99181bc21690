"""The masks of a store's images, as a source beside that of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError
from fastdata.images.concat import JoinedImages
from fastdata.images.records import Images, StoreImages
from fastdata.shared_memory import SharedArray

__all__ = ["Masks", "by_class", "class_outside"]

VOID = 255  # what public data sets of 8 bits give pixels that are not to be learnt


@dataclass(frozen=True)
class Masks:
    """Masks of classes, numbered as the images are that they belong to.

    Attributes:
        source: where they come from.
        names: of the classes, where a palette told them.
        stores: of each store, by its path, dict of class: pixels in all of its masks, as they were before preparing.
        ignore_index: the class of pixels outside of an image.
    """

    source: Images
    names: tuple[str, ...]
    stores: Mapping[Path, Mapping[int, int]]
    ignore_index: int

    @classmethod
    def of(cls, images: StoreImages, source: StoreImages, ignore_index: int | None) -> Masks:
        """The masks of images of a store. ignore_index: None: the largest class that their type holds.

        Raises:
            FormatError: they have other sizes than the images.
            ValueError: such a mask can't hold `ignore_index`, or there are pixels of that class and nobody said so.
        """
        everything = np.arange(len(images))
        if images.form.planes or not all(map(np.array_equal, images.sides(everything), source.sides(everything))):
            raise FormatError(f"{images.store.path}: its masks have not the sizes of its images; prepare it again")
        told = source.store.manifest.section("masks")
        names, pixels = (told.names, by_class(told.pixels)) if told else ((), {})
        outside = class_outside(ignore_index, source.form.dtype, pixels, names)
        return cls(source, names, {source.store.path: pixels}, outside)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Masks, SharedArray | None]]) -> Masks:
        """The masks of several sources, each with the rows of it that count; None: all of them.

        Raises:
            ValueError: their classes or dtypes differ.
        """
        first = parts[0][0]
        for masks, _ in parts[1:]:
            for what in ("names", "ignore_index"):
                one, other = getattr(first, what), getattr(masks, what)
                if one != other:
                    remedy = "give both the same" if what == "ignore_index" else "prepare both with the same --palette"
                    raise ValueError(f"datasets whose masks have {what} {one!r} and {other!r} do not go together: {remedy}")
        stores = {path: pixels for masks, _ in parts for path, pixels in masks.stores.items()}
        return replace(first, source=JoinedImages([(masks.source, rows) for masks, rows in parts]), stores=stores)

    @property
    def pixels(self) -> dict[int, int]:
        """How many of each class there are, in the order of the classes."""
        classes = sorted({k for pixels in self.stores.values() for k in pixels})
        return {k: sum(pixels.get(k, 0) for pixels in self.stores.values()) for k in classes}

    def counts(self) -> dict[int, int]:
        """The same, without the class that is ignored."""
        return {k: count for k, count in self.pixels.items() if k != self.ignore_index}

    def with_size(self, size: int | None) -> Masks:
        return replace(self, source=self.source.with_size(size))


def by_class(pixels: Mapping[str, int]) -> dict[int, int]:
    """What a manifest counts, in the order of the classes."""
    return dict(sorted((int(k), count) for k, count in pixels.items()))


def class_outside(ignore_index: int | None, dtype: Any, pixels: Mapping[int, int], names: Sequence[str]) -> int:
    """The class of what lies outside of an image.

    Args:
        ignore_index: what the user asked for; None: the largest that a mask holds.
        dtype: of the masks.
        pixels: of each class.
        names: of the classes.

    Raises:
        ValueError: a mask can't hold it; or it is the default, and there are pixels of it that may be meant to be learnt.
    """
    largest = int(np.iinfo(dtype).max)
    chosen = largest if ignore_index is None else ignore_index
    if not isinstance(chosen, int) or not 0 <= chosen <= largest:
        raise ValueError(f"ignore_index is {ignore_index}, but a {dtype} mask holds 0 to {largest}")
    others = [k for k, count in pixels.items() if count and k != chosen]
    void = chosen == VOID and len(others) > 1 and len(names) <= VOID
    if ignore_index is None and pixels.get(chosen) and not void:
        free = next((k for k in range(largest - 1, -1, -1) if not pixels.get(k)), None)
        other = "" if free is None else f", or a number that is no class, such as ignore_index={free}, if they are to be learnt"
        raise ValueError(
            f"{pixels[chosen]} pixels of the masks have class {chosen}, which is the default ignore_index, that of pixels outside "
            f"of an image: give ignore_index={chosen} if a loss is to ignore them{other}"
        )
    return chosen
