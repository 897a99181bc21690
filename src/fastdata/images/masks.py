"""The masks of a store's images, as a source next to that of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.images.records import ConcatImages, Images, StoreImages
from fastdata.system.shared_memory import SharedArray

__all__ = ["Masks", "by_class", "class_outside"]

VOID = 255  # in public 8-bit data sets, the class of pixels that are not to be learnt


@dataclass(frozen=True)
class Masks:
    """Class masks, in the same order as their images.

    Attributes:
        names: names of the classes, where a palette gave them.
        stores: for each store, by path, a dict of pixel counts by class, in all of its masks as they were before preparing.
        ignore_index: the class of pixels outside an image.
    """

    source: Images
    names: tuple[str, ...]
    stores: Mapping[Path, Mapping[int, int]]
    ignore_index: int

    @classmethod
    def of(cls, source: StoreImages, ignore_index: int | None) -> Masks:
        """Return the masks of a store's images. Raise ValueError as `class_outside` does."""
        section = source.store.manifest.section("masks")
        names, pixels = (section.names, by_class(section.pixels)) if section else ((), {})
        outside = class_outside(ignore_index, source.form.dtype, pixels, names)
        return cls(source, names, {source.store.path: pixels}, outside)

    @classmethod
    def concat(cls, parts: Sequence[tuple[Masks, SharedArray | None]]) -> Masks:
        """Concatenate the masks of several sources, each with the rows of it to use; None: all rows."""
        first = parts[0][0]
        for masks, _ in parts[1:]:
            for what in ("names", "ignore_index"):
                one, other = getattr(first, what), getattr(masks, what)
                if one != other:
                    remedy = "give both the same" if what == "ignore_index" else "prepare both with the same --palette"
                    raise ValueError(f"datasets whose masks have {what} {one!r} and {other!r} do not go together: {remedy}")
        stores = {path: pixels for masks, _ in parts for path, pixels in masks.stores.items()}
        return replace(first, source=ConcatImages([(masks.source, rows) for masks, rows in parts]), stores=stores)

    @property
    def pixels(self) -> dict[int, int]:
        """Pixel counts by class, in class order."""
        classes = sorted({k for pixels in self.stores.values() for k in pixels})
        return {k: sum(pixels.get(k, 0) for pixels in self.stores.values()) for k in classes}

    def counts(self) -> dict[int, int]:
        """Return the pixel counts without the ignored class."""
        return {k: count for k, count in self.pixels.items() if k != self.ignore_index}

    def with_size(self, size: int | None) -> Masks:
        return replace(self, source=self.source.with_size(size))


def by_class(pixels: Mapping[str, int]) -> dict[int, int]:
    """Return a manifest's pixel counts, in class order."""
    return dict(sorted((int(k), count) for k, count in pixels.items()))


def class_outside(ignore_index: int | None, dtype: Any, pixels: Mapping[int, int], names: Sequence[str]) -> int:
    """Return the class of pixels outside an image.

    Args:
        ignore_index: the user's choice; None: the largest class that a mask of this dtype holds.
        pixels: pixel counts by class.
        names: names of the classes.

    Raises:
        ValueError: if a mask cannot hold it, or it is the default and has pixels that may be meant to be learnt.
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
