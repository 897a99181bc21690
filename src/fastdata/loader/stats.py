"""The counts and times of a Loader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastdata.data.ram import RAMDataset
from fastdata.data.timing import Timing
from fastdata.images.dataset import ImageDataset
from fastdata.loader.direct import is_direct

__all__ = ["Stats"]

LARGER = 1.3  # the ratio of a stored side to the crop's from which a smaller store pays
DECODED = ("jpeg", "png")


@dataclass
class Stats:
    """What a loader has done so far, in this process.

    Attributes:
        dataset: the dataset that it reads.
        workers: its worker processes.
        cores: the cores of this rank.
        batches, samples: how many were delivered.
        wait_s: seconds that the consumer waited for a batch.
        work_s: seconds that workers spent making batches (with DALI: that this process spent). Parts of these are
        read_s, decode_s, resize_s: waiting for the images' bytes; decoding; resizing, cropping and flipping.
        slots, slots_in_use: batches that shared memory has room for, and how many of these are being filled, waiting or held.
        slot_bytes: shared memory of all slots.
        copies: batches that were handed out as a copy because the consumer held too many.
        fallbacks: samples that DALI could not decode, and the CPU decoded as backend="torch" does.
    """

    dataset: Any = field(default=None, repr=False, compare=False)
    workers: int = 0
    cores: int = 0
    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
    slots: int = 0
    slots_in_use: int = 0
    slot_bytes: int = 0
    copies: int = 0
    fallbacks: int = 0

    def add(self, wait_s: float, work_s: float, timing: Timing) -> None:
        """Add the times of one more batch."""
        self.wait_s += wait_s
        self.work_s += work_s
        self.read_s += timing.read_s
        self.decode_s += timing.decode_s
        self.resize_s += timing.resize_s

    def advice(self, before: Stats) -> str:
        """Return what to change first for a faster loader, by what its workers spent most time on since `before`; "": nothing."""
        spent = {part: getattr(self, f"{part}_s") - getattr(before, f"{part}_s") for part in ("read", "decode", "resize")}
        spent["other"] = self.work_s - before.work_s - sum(spent.values())
        return _advice(self.dataset, max(spent, key=lambda part: spent[part]), more_workers=self.workers < self.cores)


def _advice(dataset: Any, part: str, *, more_workers: bool) -> str:
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
