"""Contestants of `fastdata bench`, which do the same work on one store: RandomResizedCrop and a flip.

    the decode limit    bare processes that run the dataset's own code on their share; nothing is shuffled or handed over
    Loader              fastdata's Loader, from disk and from memory, with several numbers of workers
    DataLoader + cv2    hand-written (fastdata.bench.by_hand)

All three read the same bytes from the same memory-mapped store, so they differ only in decoding and in moving batches.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.bench.harness import Run, stream, tree_cpu_s
from fastdata.data.opening import RAMDataset, described
from fastdata.errors import LoaderError, StoreError
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.dataset import ImageDataset
from fastdata.images.records import StoreImages
from fastdata.images.stored import LMDBDataset
from fastdata.loader.fetch import ready_to_fork
from fastdata.loader.loader import Loader
from fastdata.loader.workers import begin_worker
from fastdata.store.manifest import read_current
from fastdata.system.torch_private import end_kept_workers

__all__ = ["BATCH", "CROP", "Bare", "Streamed", "Task", "find_task", "loader"]

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


class Streamed:
    """A loader, made by `make`, that runs pass after pass over records of `image_bytes`. kind: "ours" or "other"."""

    def __init__(self, name: str, kind: str, make: Callable[[], Any], workers: int, *, image_bytes: float) -> None:
        self.name, self.kind, self.workers = name, kind, workers
        self._make = make
        self._image_bytes = image_bytes
        self._loader: Any = None
        self._batches: Iterator[Any] = iter(())

    def start(self) -> float:
        """Start, and return the milliseconds to the first batch."""
        started = time.perf_counter()
        self._loader = self._make()
        self._batches = self._endless()
        next(self._batches)
        return 1e3 * (time.perf_counter() - started)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def measure(self, seconds: float) -> Run:
        run = stream((len(batch[0]) for batch in self._batches), self.workers * (AHEAD + 1), seconds)
        return run._replace(bytes=run.images * self._image_bytes)

    def close(self) -> None:
        self._batches = iter(())
        if isinstance(self._loader, Loader):
            self._loader.close()
        elif self._loader is not None:
            end_kept_workers(self._loader)
        self._loader = None


class Bare:
    """The decode limit: processes that read, decode, crop, resize and flip, each on its share of the store."""

    def __init__(self, task: Task, processes: int, image_bytes: float) -> None:
        self.name = f"decode limit, {processes} bare processes"
        self.kind = "limit"
        self.workers = processes
        self._task = task
        self._image_bytes = image_bytes
        self._running: list[tuple[Any, Any]] = []

    def start(self) -> float:
        started = time.perf_counter()
        dataset = self._task.dataset()
        for rows in np.array_split(np.arange(len(dataset)), self.workers):
            pipe, child_pipe = multiprocessing.Pipe()
            share = rows if len(rows) else np.arange(len(dataset))
            process = multiprocessing.Process(target=_serve, args=(child_pipe, dataset, share, self._task.batch_size), daemon=True)
            with ready_to_fork():
                process.start()
            child_pipe.close()
            self._running.append((process, pipe))
        self._ask(0.0)
        return 1e3 * (time.perf_counter() - started)

    def _ask(self, seconds: float) -> list[tuple[int, float]]:
        for _, pipe in self._running:
            pipe.send(seconds)
        try:
            return [pipe.recv() for _, pipe in self._running]
        except EOFError:
            raise LoaderError("a process of the decode limit died; its error is printed above") from None

    def measure(self, seconds: float) -> Run:
        cpu, done = tree_cpu_s(), self._ask(seconds)
        images, rate = sum(n for n, _ in done), sum(n / elapsed for n, elapsed in done)
        return Run(images, images / rate, tree_cpu_s() - cpu, images * self._image_bytes)

    def close(self) -> None:
        for process, pipe in self._running:
            process.kill()
            process.join()
            pipe.close()
        self._running = []


def _serve(pipe: Any, dataset: ImageDataset, rows: Array, batch_size: int) -> None:
    """Run a bare process, which sends back only how many images it made in how many seconds."""
    torch.set_num_threads(1)
    begin_worker(0)
    chunks = [rows[k : k + batch_size] for k in range(0, len(rows), batch_size)]
    batches = (dataset.read_batch(chunk, seed=0, epoch=epoch)[0] for epoch in itertools.count() for chunk in chunks)
    while True:
        seconds = pipe.recv()
        images, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or not images:
            images += len(next(batches))
        pipe.send((images, elapsed))


def loader(task: Task, dataset: Any, workers: int, image_bytes: float, *, pin_memory: bool = False) -> Streamed:
    """Return fastdata's Loader over `dataset`, as a contestant."""
    kind = "RAM" if isinstance(dataset, RAMDataset) else "LMDB"
    name = f"Loader, {kind}, {workers} worker{'s' * (workers != 1)}{', pinned' * pin_memory}"
    make = partial(
        Loader, dataset, task.batch_size, shuffle=True, num_workers=workers, prefetch_factor=AHEAD, pin_memory=pin_memory
    )
    return Streamed(name, "ours", make, workers, image_bytes=image_bytes)
