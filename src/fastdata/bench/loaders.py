"""Contestants of `fastdata bench`, which do the same work on one store: RandomResizedCrop and a flip.

    the decode limit    processes that run the dataset's own code on their share; nothing is shuffled, only counts are handed over
    Loader              fastdata's Loader, from disk and from memory, with several numbers of workers
    DataLoader + cv2    a hand-written dataset in torch's DataLoader, used as its manual recommends

All three read the same bytes from the same memory-mapped store, so they differ only in decoding and in moving batches.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastdata.bench.harness import Measure, running, stream
from fastdata.codecs.pixels import decode_record
from fastdata.data.opening import described
from fastdata.errors import StoreError
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.records import StoreImages
from fastdata.images.stored import LMDBDataset
from fastdata.loader.fetch import quiet_worker
from fastdata.loader.loader import Loader
from fastdata.store.manifest import read_current

__all__ = ["AHEAD", "BATCH", "CROP", "ByHand", "Contestant", "Task", "decode_limit", "find_task", "random_box", "streamed"]

Array = np.ndarray[Any, np.dtype[Any]]
HFLIP = 0.5
CROP, BATCH = 224, 64  # defaults; less if the images are smaller, or fewer
AHEAD = 2  # batches that each worker makes ahead: torch's default, and ours


@dataclass(frozen=True)
class Task:
    """The work of every contestant, on the first image of each sample. size: the stored size; crop: side of the output."""

    path: str
    size: int | None
    crop: int
    batch_size: int

    def dataset(self, kind: Callable[..., Any] = LMDBDataset) -> Any:
        first = next(iter(read_current(Path(self.path))[1].images), None)
        return kind(self.path, size=self.size, crop=RandomResizedCrop(self.crop), hflip=HFLIP, images=first)


def find_task(path: str, size: int | None, crop: int | None, batch_size: int | None) -> Task:
    """Return the task for a store, with defaults that fit the images.

    Raises:
        StoreError: the store has no images, or masks.
    """
    manifest = read_current(Path(path))[1]
    if manifest.kind != "images" or (manifest.section("masks") and manifest.labels.kind == "none"):
        raise StoreError(f"only stores of images without masks are measured, not {described(path, manifest)}")
    images = StoreImages(path, size)
    if not len(images):
        raise StoreError(f"{path} has no images to measure with")
    side = int(np.median(np.minimum(*images.sides(np.arange(len(images))))))
    return Task(path, size, crop or min(CROP, side), min(batch_size or BATCH, len(images)))


class Contestant(NamedTuple):
    """Who takes turns: `start` starts what it measures, yields its Measure, and ends it. kind: "limit", "ours" or "other"."""

    name: str
    kind: str
    workers: int
    start: Callable[[], AbstractContextManager[Measure]]

    @classmethod
    def ours(cls, task: Task, dataset: Any, workers: int, store: str = "LMDB") -> Contestant:
        """Return fastdata's Loader over a dataset."""

        def start() -> AbstractContextManager[Measure]:
            return streamed(Loader(dataset, task.batch_size, shuffle=True, num_workers=workers, prefetch_factor=AHEAD))

        return cls(f"Loader, {store}, {workers} worker{'s' * (workers != 1)}", "ours", workers, start)

    @classmethod
    def by_hand(cls, task: Task, workers: int, ahead: int = AHEAD) -> Contestant:
        """Return torch's DataLoader over the hand-written dataset."""
        dataset, options = ByHand(task), dict[str, Any]()
        if workers:
            options = {"prefetch_factor": ahead, "persistent_workers": True, "worker_init_fn": quiet_worker}

        def start() -> AbstractContextManager[Measure]:
            return streamed(DataLoader(dataset, task.batch_size, shuffle=True, num_workers=workers, **options))

        return cls(f"DataLoader + cv2, {workers} worker{'s' * (workers != 1)}", "other", workers, start)


@contextmanager
def streamed(loader: Any) -> Iterator[Measure]:
    """Start a loader, and yield what measures it pass after pass, without the batches that may be ready before."""
    ahead = loader.num_workers * ((loader.prefetch_factor or 0) + 1)
    with running(loader) as batches:
        next(batches)
        yield lambda seconds: stream((len(batch[0]) for batch in batches), ahead, seconds)


class _Bare(IterableDataset[int]):
    """The numbers of images that each worker reads, decodes, crops, resizes and flips of its share, without end."""

    def __init__(self, task: Task) -> None:
        self.dataset, self.batch_size = task.dataset(), task.batch_size

    def __iter__(self) -> Iterator[int]:
        worker: Any = get_worker_info()
        shares = np.array_split(np.arange(len(self.dataset)), worker.num_workers)
        rows = shares[worker.id] if len(shares[worker.id]) else shares[0]
        for epoch in itertools.count():
            for k in range(0, len(rows), self.batch_size):
                yield len(self.dataset.read_batch(rows[k : k + self.batch_size], seed=0, epoch=epoch)[0])


@contextmanager
def decode_limit(task: Task, processes: int) -> Iterator[Measure]:
    """Start processes that make images, and hand over no more than how many; yield what measures them."""
    loader: Any = DataLoader(_Bare(task), None, num_workers=processes, prefetch_factor=AHEAD, worker_init_fn=quiet_worker)
    with running(loader) as counts:
        next(counts)
        yield lambda seconds: stream(counts, processes * (AHEAD + 1), seconds)


class ByHand(Dataset[tuple[torch.Tensor, Any]]):
    """A hand-written dataset: decodes with cv2, crops and flips at random, and returns a tensor [C, H, W].

    It reads the memory-mapped store, which saves opening a file for each image: an advantage for it.
    """

    def __init__(self, task: Task) -> None:
        self.records = StoreImages(task.path, task.size)
        self.crop = task.crop

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image = self._decode(index)
        top, left, h, w = random_box(*image.shape[:2])
        image = cv2.resize(image[top : top + h, left : left + w], (self.crop, self.crop))
        if image.ndim == 2:
            image = image[:, :, None]
        if random.random() < HFLIP:
            image = image[:, ::-1]
        target = self.records.targets[index]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), int(target) if target.ndim == 0 else target

    def _decode(self, index: int) -> Array:
        data, form = self.records.get(index), self.records.form
        if form.codec == "rgb":
            return decode_record(data, form, *(int(side[0]) for side in self.records.sides(np.array([index]))))
        flags = cv2.IMREAD_UNCHANGED if form.channels == 1 else cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        return image if form.channels == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)  # type: ignore[no-any-return]


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) as torchvision's RandomResizedCrop.get_params does with its defaults."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w
