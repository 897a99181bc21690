"""What a store would be like, for several codecs and sizes, from a few images that are prepared in a temporary folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastdata.diagnosis.conditions import Conditions
from fastdata.diagnosis.pipeline import Costs, Loop
from fastdata.diagnosis.subject import Ours, probe
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.stored import LMDBDataset
from fastdata.loader.loader import Loader
from fastdata.prepare.estimate import estimate, stored_bytes
from fastdata.prepare.job import prep

__all__ = ["Variant", "duration", "try_variants"]

CODECS = "jpeg", "rgb"
OWN_SIZE = "original", "rgb"  # codecs for images that are as small as they should be
LARGER = 8 / 7  # of the crop's side: the usual 256 for crops of 224
BATCH = 64
HFLIP = 0.5


@dataclass(frozen=True)
class Variant:
    """A store that could be made.

    Attributes:
        codec, size: options of fastdata-prep; size None: each image keeps its own.
        disk_bytes: its size on disk.
        memory_bytes: what a RAMDataset of it takes.
        minutes: to prepare it on the cores of this machine that are free.
        costs: of a random crop from it.
        rate: samples/s of a Loader with one worker for each core, predicted from the costs.
    """

    codec: str
    size: int | None
    disk_bytes: float
    memory_bytes: float
    minutes: float
    costs: Costs
    rate: float

    @property
    def options(self) -> str:
        """The options of fastdata-prep."""
        return " ".join([f"--size {self.size}"] * (self.size is not None) + [f"--codec {self.codec}"] * (self.codec != "jpeg"))


def duration(minutes: float) -> str:
    """Format a time, such as "40 s" or "12 minutes"."""
    if minutes < 2:
        return f"{max(60 * minutes, 1):.0f} s"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def try_variants(
    images: Sequence[bytes],
    total: int,
    crop: int,
    short_side: int,
    stored: int | None,
    conditions: Conditions,
    seconds: float,
) -> tuple[list[Variant], list[str], dict[str, int]]:
    """Prepare a few images in each variant, and measure random crops from them.

    Args:
        images: files, of any format.
        total: of the whole data set.
        crop: side of the crops.
        short_side: of the median image.
        stored: the size that they were prepared in; None: they are as they were found.
        conditions: of this machine.
        seconds: about how long this may take.

    Returns:
        The variants, the codecs for which there was no time, and the count of images that were rejected, by reason.
    """
    sizes = tuple(size for size in _sizes(crop) if size < short_side) + (stored,) * (stored is not None)
    choices = [(codec, sizes or None) for codec in (CODECS if sizes else OWN_SIZE)]
    if sizes and stored is None:
        choices.append(("original", None))
    found, left_out, rejected = list[Variant](), list[str](), dict[str, int]()
    handover: dict[str, float] = {}
    with TemporaryDirectory(prefix="fastdata-doctor-") as folder:
        source, end = Path(folder) / "images", time.monotonic() + seconds
        source.mkdir()
        for k, data in enumerate(images):
            (source / f"{k:04d}").write_bytes(data)
        for codec, several in choices:
            if found and time.monotonic() > end:
                left_out.append(codec)
                continue
            store = Path(folder) / f"{codec}.fds"
            summary = prep(source, store, workers=1, progress="off", codec=codec, size=several)
            rejected = rejected or dict(summary.rejected)
            if not summary.kept:
                break
            for size in several or (None,):
                spent = estimate(source, workers=1, codec=codec, size=size).seconds / len(images)
                dataset = LMDBDataset(store, size=size, crop=RandomResizedCrop(crop), hflip=HFLIP)
                subject, rows = _subject(dataset)
                costs = probe(subject, rows, 0.03 * seconds)[0].costs()
                if not handover:  # the same for all, since batches are
                    handover = dict(zip(("handover", "receive"), subject.handover(rows, BATCH, 0.05 * seconds), strict=True))
                costs = replace(costs, **handover)
                opened: Any = dataset._images
                records = opened.store.field(opened.variant, "bytes").tolist()
                scale = total / len(images)
                minutes = spent * total / max(conditions.cores_for(conditions.cores), 0.1) / 60
                rate = Loop(costs, conditions).rate(conditions.cores)
                disk = sum(map(stored_bytes, records)) * scale
                found.append(Variant(codec, size, disk, sum(records) * scale, minutes, costs, rate))
    return found, left_out, rejected


def _sizes(crop: int) -> list[int]:
    first = round(crop * LARGER / 8) * 8
    return [first, 2 * first]


def _subject(dataset: LMDBDataset) -> tuple[Ours, list[int]]:
    """Return a Loader of whole batches, in which the few images are repeated, and its samples."""
    rows = [k % len(dataset) for k in range(max(BATCH, len(dataset)))]
    return Ours(Loader(dataset.subset(rows), BATCH, num_workers=0)), list(range(len(rows)))
