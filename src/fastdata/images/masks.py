"""The classes of masks: their names, their pixels, and the one that pixels outside of an image have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastdata.images.records import Images

__all__ = ["by_class", "class_names", "class_outside", "class_pixels", "ignored_class"]

VOID = 255  # in public 8-bit data sets, the class of pixels that are not to be learnt


def class_names(masks: Images) -> tuple[str, ...]:
    """Return the names of the classes of masks, where a palette gave them."""
    return next(iter(masks.stores.values())).manifest.section("masks").names  # type: ignore[no-any-return]


def class_pixels(masks: Images) -> dict[int, int]:
    """Return pixel counts by class, in class order, in all masks of each store as they were before preparing."""
    pixels = sum((Counter(store.manifest.section("masks").pixels) for store in masks.stores.values()), Counter[str]())
    return by_class(pixels)


def ignored_class(masks: Images, ignore_index: int | None) -> int:
    """Return the class of pixels outside an image. Raise ValueError as `class_outside` does."""
    return class_outside(ignore_index, masks.form.dtype, class_pixels(masks), class_names(masks))


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
