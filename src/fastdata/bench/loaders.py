"""Most contestants of `fastdata bench`: one store, RandomResizedCrop and a flip, three ways.

    the decode limit    bare processes that run the dataset's own code over their share; nothing is shuffled or handed over
    Loader              fastdata's, from disk and from memory, with several numbers of workers
    DataLoader + cv2    what a person writes by hand (fastdata.bench.by_hand)

All three take the same bytes from the same memory-mapped store, so a difference is one of decoding and of moving batches.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from fastdata.bench.harness import Run, tree_cpu_s
from fastdata.data.ram import RAMDataset
from fastdata.errors import LoaderError
from fastdata.gpu.batch import Batch
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.dataset import ImageDataset
from fastdata.images.planes import planes_to_rgb, split_planes
from fastdata.images.stored import LMDBDataset
from fastdata.loader.fetch import quiet_worker, ready_to_fork
from fastdata.loader.loader import Loader
from fastdata.torch_private import end_kept_workers

__all__ = ["Bare", "Check", "Contestant", "Streamed", "Task", "agree", "loader"]

Array = np.ndarray[Any, np.dtype[Any]]
HFLIP = 0.5
AHEAD = 2  # batches that each worker makes ahead: torch's default, and ours
SIGMAS, CODES = 6, 3  # how far apart mean colours may be: standard errors, and beyond that codes of 255, as decoders differ


@dataclass(frozen=True)
class Task:
    """What every contestant has to do. size: the stored size; crop: pixels a side of the output."""

    path: str
    size: int | None
    crop: int
    batch_size: int

    def dataset(self, kind: Callable[..., Any] = LMDBDataset) -> Any:
        return kind(self.path, size=self.size, crop=RandomResizedCrop(self.crop), hflip=HFLIP)


@dataclass(frozen=True)
class Check:
    """What a pass outside the timed region delivered. complete: it went to its end; means: of each sample and channel, [n, C]."""

    complete: bool
    shape: tuple[int, ...]
    dtype: str
    means: Array


class Contestant(Protocol):
    """Keeps its processes over all rounds. kind: "limit", "ours" or "other"; workers: how many processes."""

    name: str
    kind: str
    workers: int

    def start(self) -> float:
        """Start, and return the milliseconds to the first batch."""

    def measure(self, seconds: float) -> Run:
        """Deliver for that long; start what is not running."""

    def check(self, seconds: float) -> Check:
        """Deliver one pass, or what of it fits into `seconds`, and look at it: LoaderError if it is not what it should be."""

    def close(self) -> None: ...


class Streamed:
    """A loader, made by `make`, that runs on from pass to pass of `samples` samples each, whose records have `image_bytes`."""

    def __init__(self, name: str, kind: str, make: Callable[[], Any], workers: int, *, samples: int, image_bytes: float) -> None:
        self.name, self.kind, self.workers = name, kind, workers
        self._make, self._samples, self._image_bytes = make, samples, image_bytes
        self._loader: Any = None
        self._batches: Iterator[Any] = iter(())

    def start(self) -> float:
        started = time.perf_counter()
        self._loader = self._make()
        self._batches = self._endless()
        next(self._batches)
        return 1e3 * (time.perf_counter() - started)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def measure(self, seconds: float) -> Run:
        if self._loader is None:
            self.start()
        for _ in range(self.workers * (AHEAD + 1)):  # what lies ready was made before, and isn't counted
            next(self._batches)
        images, cpu, started = 0, tree_cpu_s(), time.perf_counter()
        while (taken := time.perf_counter() - started) < seconds or not images:
            images += len(next(self._batches)[0])
        return Run(images, taken, tree_cpu_s() - cpu, images * self._image_bytes)

    def check(self, seconds: float) -> Check:
        end, complete, means, ids = time.monotonic() + seconds, False, list[Array](), list[int]()
        for batch in self._loader:
            images = _rgb(batch[0].permute(0, 2, 3, 1).numpy(), self._loader.dataset)
            if not means:
                self._same_as_dataset(batch)
            means.append(_means(images))
            ids.extend(batch.ids.tolist() if isinstance(batch, Batch) else range(len(ids), len(ids) + len(images)))
            if time.monotonic() > end:
                break
        else:
            complete = True
        if len(set(ids)) != len(ids) or len(ids) > self._samples or (complete and len(ids) < self._samples):
            raise LoaderError(f"{self.name} delivered {len(ids)} of {self._samples} samples, {len(set(ids))} different ones")
        self._batches = self._endless()
        return Check(complete, images.shape[1:], str(images.dtype), np.concatenate(means))

    def _same_as_dataset(self, batch: Any) -> None:
        """The pixels of one batch must be those that the dataset makes without any loader."""
        if isinstance(self._loader, Loader):
            images, _ = self._loader.dataset.read_batch(batch.ids, seed=self._loader.seed, epoch=batch.position[0])
            if not np.array_equal(images, batch[0].permute(0, 2, 3, 1).numpy()):
                raise LoaderError(f"{self.name} delivered pixels that are not the dataset's")

    def close(self) -> None:
        self._batches = iter(())
        if isinstance(self._loader, Loader):
            self._loader.close()
        elif self._loader is not None:
            end_kept_workers(self._loader)
        self._loader = None


class Bare:
    """The decode limit: processes that read, decode, crop, resize and flip, each over its share of the store."""

    def __init__(self, task: Task, processes: int, image_bytes: float) -> None:
        self.name, self.kind, self.workers = f"decode limit, {processes} bare processes", "limit", processes
        self._task, self._image_bytes = task, image_bytes
        self._running: list[tuple[Any, Any]] = []

    def start(self) -> float:
        started, dataset = time.perf_counter(), self._task.dataset()
        for rows in np.array_split(np.arange(len(dataset)), self.workers):
            ours, theirs = multiprocessing.Pipe()
            share = rows if len(rows) else np.arange(len(dataset))
            process = multiprocessing.Process(target=_serve, args=(theirs, dataset, share, self._task.batch_size), daemon=True)
            with ready_to_fork():
                process.start()
            theirs.close()
            self._running.append((process, ours))
        self._ask("run", 0.0)
        return 1e3 * (time.perf_counter() - started)

    def _ask(self, what: str, seconds: float) -> list[Any]:
        for _, pipe in self._running:
            pipe.send((what, seconds))
        try:
            return [pipe.recv() for _, pipe in self._running]
        except EOFError:
            raise LoaderError("a process of the decode limit died; it says why above") from None

    def measure(self, seconds: float) -> Run:
        if not self._running:
            self.start()
        cpu, done = tree_cpu_s(), self._ask("run", seconds)
        images, rate = sum(n for n, _ in done), sum(n / taken for n, taken in done)
        return Run(images, images / rate, tree_cpu_s() - cpu, images * self._image_bytes)

    def check(self, seconds: float) -> Check:
        parts: list[Check] = self._ask("check", seconds)
        complete, means = all(part.complete for part in parts), np.concatenate([part.means for part in parts])
        return Check(complete, parts[0].shape, parts[0].dtype, means)

    def close(self) -> None:
        for process, pipe in self._running:
            pipe.close()
            process.kill()
            process.join()
        self._running = []


def _serve(pipe: Any, dataset: ImageDataset, rows: Array, batch_size: int) -> None:
    """A bare process. Only counts go back, and means when asked to check."""
    torch.set_num_threads(1)
    quiet_worker(0)
    parent = os.getppid()
    batches = _rendered(dataset, [rows[k : k + batch_size] for k in range(0, len(rows), batch_size)])
    while os.getppid() == parent:  # so that a parent that was killed leaves nobody behind
        if pipe.poll(1.0):
            what, seconds = pipe.recv()
            pipe.send(_checked(batches, dataset, len(rows), seconds) if what == "check" else _counted(batches, seconds))


def _rendered(dataset: ImageDataset, chunks: list[Array]) -> Iterator[Array]:
    return (dataset.read_batch(chunk, seed=0, epoch=epoch)[0] for epoch in itertools.count() for chunk in chunks)


def _counted(batches: Iterator[Array], seconds: float) -> tuple[int, float]:
    images, started = 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds or not images:
        images += len(next(batches))
    return images, taken


def _checked(batches: Iterator[Array], dataset: ImageDataset, samples: int, seconds: float) -> Check:
    end, means = time.monotonic() + seconds, np.empty((0, 0))
    while len(means) < samples and (time.monotonic() < end or not len(means)):
        images = _rgb(next(batches), dataset)
        means = np.concatenate([means, _means(images)]) if len(means) else _means(images)
    return Check(len(means) >= samples, images.shape[1:], str(images.dtype), means)


def _rgb(images: Array, dataset: Any) -> Array:
    """Pixels [n, H, W, C] also where a dataset emits planes."""
    if not (isinstance(dataset, ImageDataset) and dataset._images.form.planes):
        return images
    rows, width = images.shape[1:3]
    return np.stack([planes_to_rgb(split_planes(image, rows // 3 * 2, width)) for image in images])


def _means(images: Array) -> Array:
    """Of each sample and channel, [n, C], over every fourth pixel of every fourth row."""
    return np.asarray(images[:, ::4, ::4].mean((1, 2), dtype=np.float64))


def agree(checks: dict[str, Check]) -> None:
    """Raise LoaderError unless all contestants deliver the same kind of array, and the same colours within chance."""
    (first, a), *others = checks.items()
    for name, b in others:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise LoaderError(f"{first} delivers {a.dtype} {a.shape}, {name} {b.dtype} {b.shape}: no comparison")
        if min(len(a.means), len(b.means)) < 16:
            continue  # too few to tell
        chance = np.sqrt(a.means.var(0) / len(a.means) + b.means.var(0) / len(b.means))
        allowed = CODES * (np.iinfo(a.dtype).max / 255) + SIGMAS * chance
        if np.any(np.abs(a.means.mean(0) - b.means.mean(0)) > allowed):
            raise LoaderError(f"{first} has mean colour {a.means.mean(0).round(1)}, {name} {b.means.mean(0).round(1)}")


def loader(task: Task, dataset: Any, workers: int, image_bytes: float, *, pin_memory: bool = False) -> Streamed:
    """fastdata's Loader over `dataset`."""
    kind = "RAM" if isinstance(dataset, RAMDataset) else "LMDB"
    name = f"Loader, {kind}, {workers} worker{'s' * (workers != 1)}{', pinned' * pin_memory}"
    make = partial(
        Loader, dataset, task.batch_size, shuffle=True, num_workers=workers, prefetch_factor=AHEAD, pin_memory=pin_memory
    )
    return Streamed(name, "ours", make, workers, samples=len(dataset), image_bytes=image_bytes)
