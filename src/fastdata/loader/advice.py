"""What would make a loader quicker: only what can still be changed here."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.data.ram import RAMDataset
from fastdata.images.dataset import ImageDataset
from fastdata.loader.direct import is_direct

__all__ = ["advice"]

LARGER = 1.3  # a stored side, beside that of the crop, from which on a smaller one is worth a new store
DECODED = ("jpeg", "png")


def advice(dataset: Any, part: str, *, more_workers: bool) -> str:
    """The first things to change where workers spend most of their time on one part of the work; "" where nothing is left.

    Args:
        part: "read", "decode", "resize", or "other", such as a transform of the user's.
        more_workers: whether cores are left for them.
    """
    found = list[str]()
    if part == "read" and not isinstance(dataset, RAMDataset):
        found.append("RAMDataset, which keeps the bytes in memory")
    if isinstance(dataset, ImageDataset):
        crop = dataset.view.crop
        if part == "resize" and crop is not None and crop.resizes and crop.antialias:
            found.append("antialias=False")
        if part in ("decode", "resize") and _shrinks(dataset):
            found.append("a smaller --size of the store")
        if part == "decode" and dataset.codec in DECODED:
            found.append("--codec rgb (no decoding, but more room)")
    if part != "read" and more_workers and not is_direct(dataset):  # batches of those are made by this process
        found.append("more workers")
    return " or ".join(found) if len(found) < 3 else f"{', '.join(found[:-1])}, or {found[-1]}"


def _shrinks(dataset: ImageDataset) -> bool:
    """Whether most stored images are much larger than what is made of them."""
    crop = dataset.view.crop
    return crop is not None and bool(np.median(np.minimum(*dataset.sides())) >= LARGER * max(crop.sides(2)))
