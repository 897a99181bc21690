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
from typing import Any, Protocol

import numpy as np
import torch

from fastdata.bench.harness import Run, stream, tree_cpu_s
from fastdata.data.ram import RAMDataset
from fastdata.errors import LoaderError
from fastdata.gpu.batch import Batch
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.dataset import ImageDataset
from fastdata.images.stored import LMDBDataset
from fastdata.loader.fetch import ready_to_fork
from fastdata.loader.loader import Loader
from fastdata.loader.workers import begin_worker
from fastdata.store.format import read_current
from fastdata.torch_private import end_kept_workers

__all__ = ["Bare", "Check", "Contestant", "Streamed", "Task", "agree", "loader"]

Array = np.ndarray[Any, np.dtype[Any]]
HFLIP = 0.5
AHEAD = 2  # batches that each worker makes ahead: torch's default, and ours
SIGMAS, CODES = 6, 3  # tolerance between mean colours: standard errors, plus codes of 255 because decoders differ


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


@dataclass(frozen=True)
class Check:
    """The result of a pass outside the timed region. complete: it reached its end; means: per sample and channel, [n, C]."""

    complete: bool
    shape: tuple[int, ...]
    dtype: str
    means: Array


class Contestant(Protocol):
    """A contestant, which keeps its processes over all rounds. kind: "limit", "ours" or "other"; workers: number of processes."""

    name: str
    kind: str
    workers: int

    def start(self) -> float:
        """Start, and return the milliseconds to the first batch."""

    def measure(self, seconds: float) -> Run:
        """Deliver batches for `seconds`; start first if needed."""

    def check(self, seconds: float) -> Check:
        """Deliver one pass, or as much as fits into `seconds`; raise LoaderError if the batches are wrong."""

    def close(self) -> None: ...


class Streamed:
    """A loader, made by `make`, that runs pass after pass over `samples` samples with `image_bytes` per record."""

    def __init__(self, name: str, kind: str, make: Callable[[], Any], workers: int, *, samples: int, image_bytes: float) -> None:
        self.name, self.kind, self.workers = name, kind, workers
        self._make = make
        self._samples = samples
        self._image_bytes = image_bytes
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
        run = stream((len(batch[0]) for batch in self._batches), self.workers * (AHEAD + 1), seconds)
        return run._replace(bytes=run.images * self._image_bytes)

    def check(self, seconds: float) -> Check:
        end = time.monotonic() + seconds
        complete = False
        means, ids = list[Array](), list[int]()
        for batch in self._loader:
            images = batch[0].permute(0, 2, 3, 1).numpy()
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
        """Raise LoaderError unless the batch has the pixels that the dataset makes without a loader."""
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
        self._ask("run", 0.0)
        return 1e3 * (time.perf_counter() - started)

    def _ask(self, what: str, seconds: float) -> list[Any]:
        for _, pipe in self._running:
            pipe.send((what, seconds))
        try:
            return [pipe.recv() for _, pipe in self._running]
        except EOFError:
            raise LoaderError("a process of the decode limit died; its error is printed above") from None

    def measure(self, seconds: float) -> Run:
        if not self._running:
            self.start()
        cpu, done = tree_cpu_s(), self._ask("run", seconds)
        images, rate = sum(n for n, _ in done), sum(n / elapsed for n, elapsed in done)
        return Run(images, images / rate, tree_cpu_s() - cpu, images * self._image_bytes)

    def check(self, seconds: float) -> Check:
        parts: list[Check] = self._ask("check", seconds)
        complete, means = all(part.complete for part in parts), np.concatenate([part.means for part in parts])
        return Check(complete, parts[0].shape, parts[0].dtype, means)

    def close(self) -> None:
        for process, pipe in self._running:
            process.kill()
            process.join()
            pipe.close()
        self._running = []


def _serve(pipe: Any, dataset: ImageDataset, rows: Array, batch_size: int) -> None:
    """Run a bare process, which sends back only counts, and means if asked to check."""
    torch.set_num_threads(1)
    begin_worker(0)
    batches = _render(dataset, [rows[k : k + batch_size] for k in range(0, len(rows), batch_size)])
    while True:
        what, seconds = pipe.recv()
        pipe.send(_check_batches(batches, dataset, len(rows), seconds) if what == "check" else _count_images(batches, seconds))


def _render(dataset: ImageDataset, chunks: list[Array]) -> Iterator[Array]:
    return (dataset.read_batch(chunk, seed=0, epoch=epoch)[0] for epoch in itertools.count() for chunk in chunks)


def _count_images(batches: Iterator[Array], seconds: float) -> tuple[int, float]:
    images, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not images:
        images += len(next(batches))
    return images, elapsed


def _check_batches(batches: Iterator[Array], dataset: ImageDataset, samples: int, seconds: float) -> Check:
    end, means = time.monotonic() + seconds, np.empty((0, 0))
    while len(means) < samples and (time.monotonic() < end or not len(means)):
        images = next(batches)
        means = np.concatenate([means, _means(images)]) if len(means) else _means(images)
    return Check(len(means) >= samples, images.shape[1:], str(images.dtype), means)


def _means(images: Array) -> Array:
    """Return the mean of each sample and channel, [n, C], over every fourth pixel of every fourth row."""
    return np.asarray(images[:, ::4, ::4].mean((1, 2), dtype=np.float64))


def agree(checks: dict[str, Check]) -> None:
    """Raise LoaderError unless all contestants deliver the same shape and dtype, and mean colours that differ by chance only."""
    (first, a), *others = checks.items()
    for name, b in others:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise LoaderError(f"{first} delivers {a.dtype} {a.shape}, {name} {b.dtype} {b.shape}: no comparison")
        if min(len(a.means), len(b.means)) < 16:
            continue  # too few for a comparison
        chance = np.sqrt(a.means.var(0) / len(a.means) + b.means.var(0) / len(b.means))
        allowed = CODES * (np.iinfo(a.dtype).max / 255) + SIGMAS * chance
        if np.any(np.abs(a.means.mean(0) - b.means.mean(0)) > allowed):
            raise LoaderError(f"{first} has mean colour {a.means.mean(0).round(1)}, {name} {b.means.mean(0).round(1)}")


def loader(task: Task, dataset: Any, workers: int, image_bytes: float, *, pin_memory: bool = False) -> Streamed:
    """Return fastdata's Loader over `dataset`, as a contestant."""
    kind = "RAM" if isinstance(dataset, RAMDataset) else "LMDB"
    name = f"Loader, {kind}, {workers} worker{'s' * (workers != 1)}{', pinned' * pin_memory}"
    make = partial(
        Loader, dataset, task.batch_size, shuffle=True, num_workers=workers, prefetch_factor=AHEAD, pin_memory=pin_memory
    )
    return Streamed(name, "ours", make, workers, samples=len(dataset), image_bytes=image_bytes)
