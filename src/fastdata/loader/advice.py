"""Names the changes that would make a loader faster, leaving out those that are already made."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.data.ram import RAMDataset
from fastdata.images.dataset import ImageDataset
from fastdata.loader.direct import is_direct

__all__ = ["advice"]

LARGER = 1.3  # the ratio of a stored side to the crop's from which a smaller store pays
DECODED = ("jpeg", "png")


def advice(dataset: Any, part: str, *, more_workers: bool) -> str:
    """Return the first things to change where workers spend most of their time on `part`; "" if none is left.

    Args:
        part: "read", "decode", "resize", or "other", such as a user's transform.
        more_workers: whether cores are left for them.
    """
    found = list[str]()
    if part == "read" and not isinstance(dataset, RAMDataset):
        found.append("RAMDataset, which keeps the bytes in memory")
    if isinstance(dataset, ImageDataset):
        crops = [view.crop for view in dataset.views.each]
        if part == "resize" and any(crop is not None and crop.resizes and crop.antialias for crop in crops):
            found.append("antialias=False")
        if part in ("decode", "resize") and _shrinks(dataset):
            found.append("a smaller --size of the store")
        if part == "decode" and dataset.codec in DECODED:
            found.append("--codec rgb (no decoding, but more room)")
    if part != "read" and more_workers and not is_direct(dataset):  # this process makes the batches of those
        found.append("more workers")
    return " or ".join(found) if len(found) < 3 else f"{', '.join(found[:-1])}, or {found[-1]}"


def _shrinks(dataset: ImageDataset) -> bool:
    """Return whether most stored images are much larger than the largest crop's output."""
    crops = [view.crop for view in dataset.views.each if view.crop is not None]
    most = max((max(crop.sides(2)) for crop in crops), default=None)
    return most is not None and bool(np.median(np.minimum(*dataset.sides())) >= LARGER * most)
