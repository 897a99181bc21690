"""What is diagnosed: a loader that can be taken apart, and made again with other numbers of workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import thread_time
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, default_collate

from fastdata.data.dataset import SlotDataset, Timing
from fastdata.diagnosis.apart import apart
from fastdata.diagnosis.batches import any_number_of_workers, count, endless, kept
from fastdata.diagnosis.parts import Parts
from fastdata.errors import FastDataError
from fastdata.loader.direct import is_direct
from fastdata.loader.loader import Loader

__all__ = ["Ours", "Subject", "Torchs", "probe", "subject_of"]

LEAST_BATCHES = 16  # of an epoch


class Subject:
    """A loader of any kind, of which only whole batches can be measured.

    Attributes:
        loader: it.
        name: what it is in messages.
        samples: of the dataset; None: unknown.
        batch_size: samples of a batch.
        workers: its worker processes.
        prefetch: batches that each makes ahead.
        parts_known: whether samples can be made here, in parts.
        parallel: whether any number of workers can make the batches.
        device: the device that it copies batches to by itself; None: it does not.
    """

    name = "the loader"
    samples: int | None = None
    workers = 0
    prefetch = 0
    parts_known = False
    parallel = False
    device: torch.device | None = None

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.batch_size = 1

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        """Make a batch of these samples in this process, and add its times to `parts`."""
        raise NotImplementedError

    @contextmanager
    def batches(self, workers: int, rows: Sequence[int], batch_size: int) -> Iterator[Iterator[Any]]:
        """Yield batches of these samples without end, made by so many workers."""
        yield endless(self.loader)


class _Dataset(Subject):
    """A loader over a dataset that can be indexed."""

    parts_known = True

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.dataset = loader.dataset
        self.collate: Any = default_collate
        self.name = f"{type(loader).__name__} of {type(self.dataset).__name__}"

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        with parts.timed(len(rows)), parts.watched():
            items = self._items(rows)
            known, started = parts.read_s + parts.decode_s + parts.resize_s, thread_time()
            self.collate(items)
            parts.collate_s += thread_time() - started - (parts.read_s + parts.decode_s + parts.resize_s - known)

    def _items(self, rows: Sequence[int]) -> Any:
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__([*rows])
        return [self.dataset[row] for row in rows]


class Torchs(_Dataset):
    """torch's DataLoader. Samples are drawn at random, whatever its sampler."""

    parallel = True

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._iterable = isinstance(self.dataset, IterableDataset)
        self._batched = loader.batch_sampler is not None  # or its items are batches
        self.samples = None if self._iterable else len(self.dataset)
        self.workers, self.prefetch = loader.num_workers, loader.prefetch_factor or 2
        self.collate = loader.collate_fn
        batches: Any = loader.batch_sampler
        self.batch_size = loader.batch_size or (len(next(iter(batches))) if self._batched else 1)
        self._items_left: Iterator[Any] = iter(())

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        if self._batched:
            super().make(rows, parts)
            return
        for row in rows:
            with parts.timed(0), parts.watched():
                batch = self.collate(self._items([row])[0])
            parts.samples += count(batch)

    def _items(self, rows: Sequence[int]) -> Any:
        if not self._iterable:
            return super()._items(rows)
        found = list(itertools.islice(self._items_left, len(rows)))
        if len(found) < len(rows):
            self._items_left = iter(self.dataset)
            found += itertools.islice(self._items_left, len(rows) - len(found))
        if not found:
            raise FastDataError(f"{self.name} yields no samples, so there is nothing to measure")
        return found

    @contextmanager
    def batches(self, workers: int, rows: Sequence[int], batch_size: int) -> Iterator[Iterator[Any]]:
        loader, data = self.loader, self.dataset
        options: dict[str, Any] = {"batch_size": batch_size if self._batched else None}
        if not self._iterable:
            data = Subset(data, [*rows])
            options |= {"sampler": RandomSampler(data, replacement=True, num_samples=1 << 40)}  # without end
        if workers:
            options |= {"prefetch_factor": self.prefetch, "persistent_workers": True, "timeout": loader.timeout}
            options |= {"multiprocessing_context": loader.multiprocessing_context, "worker_init_fn": loader.worker_init_fn}
        pins = loader.pin_memory and torch.cuda.is_available()  # torch warns otherwise
        with any_number_of_workers():
            again = DataLoader(data, num_workers=workers, collate_fn=self.collate, pin_memory=pins, **options)
            with kept(again) as found:
                yield found


class Ours(_Dataset):
    """fastdata's Loader."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self.samples = len(self.dataset)
        self.parallel = not is_direct(self.dataset)
        self.workers, self.prefetch = loader.num_workers if self.parallel else 0, loader.prefetch_factor
        self.batch_size = min(loader.global_batch_size // loader.part.world_size, self.samples)
        self.device = loader.device
        self.collate = loader._collate_fn or default_collate

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        if not (isinstance(self.dataset, SlotDataset) or is_direct(self.dataset)):
            super().make(rows, parts)
            return
        indices, timing, before = np.asarray(rows, np.int64), Timing(), (parts.wall_s, parts.cpu_s)
        with parts.timed(len(rows)):
            if is_direct(self.dataset):
                self.dataset.gather(self.dataset.locate(indices, seed=0, epoch=0, repeats=None), pin=False)
            else:
                self.dataset.read_batch(indices, seed=0, epoch=0, timing=timing)
        cpu = (parts.cpu_s - before[1]) / max(parts.wall_s - before[0], 1e-12)  # of each second of the clock
        parts.read_s += timing.read_s * cpu
        parts.decode_s += timing.decode_s * cpu
        parts.resize_s += timing.resize_s * cpu

    @contextmanager
    def batches(self, workers: int, rows: Sequence[int], batch_size: int) -> Iterator[Iterator[Any]]:
        loader = self.loader
        size = min(batch_size, len(rows))
        rows = [*rows] * -(-LEAST_BATCHES * size // len(rows))  # so that an epoch does not end all the time
        part = self.dataset.subset(rows) if hasattr(self.dataset, "subset") else Subset(self.dataset, [*rows])
        again = Loader(
            part,
            size,
            shuffle=True,
            num_workers=workers,
            prefetch_factor=self.prefetch,
            collate_fn=loader._collate_fn,
            device=self.device,
            pin_memory=loader.pin_memory,
            backend=loader.backend,
            rank=0,
            world_size=1,
        )
        with again, any_number_of_workers():
            yield endless(again)


def subject_of(loader: Any) -> Subject:
    """Return what can be measured of a loader: a DataLoader, a Loader, or any iterable of batches.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(loader, Loader):
        return Ours(loader)
    if isinstance(loader, DataLoader):
        return Torchs(loader)
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"doctor measures a DataLoader, a Loader or another iterable of batches, found a {type(loader).__name__}")
    return Subject(loader)


def probe(subject: Subject, rows: Sequence[int], seconds: float) -> Parts:
    """Make samples in a child process, as one worker would, for about `seconds`. Begin again if the rows end."""
    return apart(lambda: _probe(subject, rows, seconds))


def _probe(subject: Subject, rows: Sequence[int], seconds: float) -> Parts:
    parts, at, chunk = Parts(), 0, 1
    cv2.setNumThreads(1)  # as in a worker
    torch.set_num_threads(1)
    subject.make(rows[:1], Parts())  # opens files and imports modules
    end = time.monotonic() + seconds
    while not parts.samples or time.monotonic() < end:
        part = [rows[k % len(rows)] for k in range(at, at + chunk)]
        subject.make(part, parts)
        at += len(part)
        left = (end - time.monotonic()) / max(parts.wall_s / max(parts.samples, 1), 1e-9)  # samples for which there is time
        chunk = max(1, min(subject.batch_size, int(left / 4)))
    return parts
