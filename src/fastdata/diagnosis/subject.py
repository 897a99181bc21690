"""What is diagnosed: a loader that can be taken apart, and made again with other arguments."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from fastdata.bench.harness import stream
from fastdata.bench.loaders import AHEAD
from fastdata.data.dataset import SlotDataset
from fastdata.data.timing import Timing
from fastdata.diagnosis.apart import apart
from fastdata.diagnosis.batches import batch_bytes, count, image_files
from fastdata.diagnosis.endless import Rows, Shuffled, any_number_of_workers, endless, kept
from fastdata.diagnosis.parts import Parts
from fastdata.diagnosis.storage import Span
from fastdata.errors import FastDataError
from fastdata.images.dataset import ImageDataset
from fastdata.images.pixels import encode_record
from fastdata.images.records import StoreImages
from fastdata.loader.direct import is_direct
from fastdata.loader.loader import Loader

__all__ = ["Ours", "Subject", "Torchs", "probe", "subject_of"]

LEAST_BATCHES = 16  # of an epoch
ITEMS = 16  # samples that are handed over again and again
CODE = ".py", ".pyc", ".so"  # files that are opened for other reasons than samples
PLAIN = ("jpeg", "png", "original")  # codecs whose records are image files


class Subject:
    """A loader of any kind, of which only whole batches can be measured.

    Attributes:
        loader: it.
        name: what it is in messages.
        samples: of the dataset; None: unknown.
        batch_size: samples of a batch.
        workers: its worker processes.
        prefetch: batches that each makes ahead.
        in_shm: whether batches of workers lie in /dev/shm.
        source: what `fastdata-prep` would be given; None: unknown.
        parallel: whether any number of workers can make the batches.
        device: the device that it copies batches to by itself; None: it does not.
        pins: whether it page-locks batches.
        stored: the stored size that it reads; None: it reads no store, or images in their own size.
    """

    name = "the loader"
    samples: int | None = None
    workers = 0
    prefetch = 0
    in_shm = False
    source: str | None = None
    parallel = False
    device: torch.device | None = None
    stored: int | None = None
    pins = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.batch_size = 1

    @property
    def parts_known(self) -> bool:
        """Whether samples can be made here, in parts."""
        return type(self) is not Subject

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        """Make a batch of these samples in this process, and add its times and bytes to `parts`."""
        raise NotImplementedError

    @contextmanager
    def batches(
        self, workers: int, rows: Sequence[int], batch_size: int | None = None, *, prefetch: int | None = None
    ) -> Iterator[Iterator[Any]]:
        """Yield batches of these samples without end, made by so many workers."""
        yield endless(self.loader)

    def handover(self, rows: Sequence[int], batch_size: int, seconds: float) -> tuple[float, float]:
        """Measure how samples come from workers to the loop.

        Returns:
            The CPU seconds, of all processes, to collate a sample and to hand it over; and the least seconds on the clock in which
            the loop can take one.
        """
        raise NotImplementedError

    def spans(self, rows: Sequence[int], files: Sequence[str], samples: int) -> tuple[list[Span], float | None]:
        """Return where on disk some samples lie, and the bytes of all; none if unknown. files: those opened for so many samples."""
        return [], None

    def images(self, rows: Sequence[int], files: Sequence[str]) -> list[bytes]:
        """Return the image files of some samples, of which `files` were opened; none if unknown."""
        return []

    def call(self, **arguments: Any) -> str:
        """Return a line that makes the loader with other arguments."""
        return ", ".join(f"{name}={value}" for name, value in arguments.items())


class _Dataset(Subject):
    """A loader over a dataset that can be indexed."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.dataset = loader.dataset
        self.collate: Any = default_collate
        self.name = f"{type(loader).__name__} of {type(self.dataset).__name__}"

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        with parts.timed(len(rows)), parts.watched():
            items = self._items(rows)
            known, started = parts.read_s + parts.decode_s + parts.resize_s, thread_time()
            batch = self.collate(items)
            parts.collate_s += thread_time() - started - (parts.read_s + parts.decode_s + parts.resize_s - known)
        parts.batch_bytes += batch_bytes(batch)

    def handover(self, rows: Sequence[int], batch_size: int, seconds: float) -> tuple[float, float]:
        items = [*self._items(rows[: min(batch_size, ITEMS)])]
        loader: Any = DataLoader(
            items,  # type: ignore[arg-type]  # a list is a dataset, whose samples are there already
            batch_sampler=Shuffled(range(len(items)), batch_size),
            num_workers=max(self.workers, 1),
            collate_fn=self.collate,
            persistent_workers=True,
        )
        with any_number_of_workers(), kept(loader) as batches:
            run = stream(map(count, batches), max(self.workers, 1) * (AHEAD + 1), seconds)
        return run.cpu_s / run.images, run.seconds / run.images

    def _items(self, rows: Sequence[int]) -> Any:
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__([*rows])
        return [self.dataset[row] for row in rows]

    def spans(self, rows: Sequence[int], files: Sequence[str], samples: int) -> tuple[list[Span], float | None]:
        paths = [path for name in files if not name.endswith(CODE) and (path := Path(name)).is_file()]
        if not self.samples or len(paths) < samples / 2:  # samples share files, such as one HDF5: where in it is unknown
            return [], None
        found = [Span(str(path), 0, path.stat().st_size) for path in paths[: len(rows)]]
        return found, sum(span.length for span in found) / len(found) * len(paths) / samples * self.samples

    def images(self, rows: Sequence[int], files: Sequence[str]) -> list[bytes]:
        return image_files(files[: len(rows)])


class Torchs(_Dataset):
    """torch's DataLoader. Samples are drawn at random, whatever its sampler."""

    in_shm = True
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
        self.pins = bool(loader.pin_memory) and torch.cuda.is_available()
        self._items_left: Iterator[Any] = iter(())

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        if self._batched:
            super().make(rows, parts)
            return
        for row in rows:
            with parts.timed(0), parts.watched():
                batch = self.collate(self._items([row])[0])
            parts.samples += count(batch)
            parts.batch_bytes += batch_bytes(batch)

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
    def batches(
        self, workers: int, rows: Sequence[int], batch_size: int | None = None, *, prefetch: int | None = None
    ) -> Iterator[Iterator[Any]]:
        loader, options = self.loader, dict[str, Any]()
        if self._iterable:
            options |= {"batch_size": (batch_size or self.batch_size) if self._batched else None}
        elif self._batched:
            options |= {"batch_sampler": Shuffled(rows, batch_size or self.batch_size)}
        else:
            options |= {"batch_size": None, "sampler": Rows(rows)}
        if workers:
            options |= {"prefetch_factor": prefetch or self.prefetch, "persistent_workers": True}
            options |= {"multiprocessing_context": loader.multiprocessing_context, "worker_init_fn": loader.worker_init_fn}
        with any_number_of_workers():
            again = DataLoader(
                self.dataset,
                num_workers=workers,
                collate_fn=self.collate,
                pin_memory=self.pins,
                timeout=loader.timeout if workers else 0,
                **options,
            )
            with kept(again) as found:
                yield found

    def call(self, **arguments: Any) -> str:
        return f"DataLoader(dataset, batch_size={self.batch_size}, shuffle=True, {super().call(**arguments)})"


class Ours(_Dataset):
    """fastdata's Loader."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self.samples = len(self.dataset)
        self.workers, self.prefetch = loader.num_workers, loader.prefetch_factor
        self.batch_size = min(loader.global_batch_size // loader.part.world_size, self.samples)
        self.device = loader.device
        self.collate = loader._collate_fn or default_collate
        self.pins = loader.pin_memory
        self._stored = self.dataset._images if isinstance(self.dataset, ImageDataset) else None
        self.stored = self._stored.variant.size if isinstance(self._stored, StoreImages) else None
        self.in_shm = not isinstance(self.dataset, SlotDataset)
        self.parallel = not is_direct(self.dataset)

    def make(self, rows: Sequence[int], parts: Parts) -> None:
        if not (isinstance(self.dataset, SlotDataset) or is_direct(self.dataset)):
            super().make(rows, parts)
            return
        indices, timing, before = np.asarray(rows, np.int64), Timing(), (parts.wall_s, parts.cpu_s)
        with parts.timed(len(rows)):
            if is_direct(self.dataset):
                batch = self.dataset.gather(self.dataset.locate(indices, seed=0, epoch=0, repeats=None), pin=False)
            else:
                batch = self.dataset.read_batch(indices, seed=0, epoch=0, timing=timing)
        parts.batch_bytes += batch_bytes(batch)
        cpu = (parts.cpu_s - before[1]) / max(parts.wall_s - before[0], 1e-12)  # of each second of the clock
        parts.read_s += timing.read_s * cpu
        parts.decode_s += timing.decode_s * cpu
        parts.resize_s += timing.resize_s * cpu

    @contextmanager
    def batches(
        self, workers: int, rows: Sequence[int], batch_size: int | None = None, *, prefetch: int | None = None
    ) -> Iterator[Iterator[Any]]:
        loader = self.loader
        size = min(batch_size or self.batch_size, len(rows))
        rows = [*rows] * -(-LEAST_BATCHES * size // len(rows))  # so that an epoch does not end all the time
        part = self.dataset.subset(rows) if hasattr(self.dataset, "subset") else Subset(self.dataset, [*rows])
        again = Loader(
            part,
            size,
            shuffle=True,
            num_workers=workers,
            prefetch_factor=prefetch or self.prefetch,
            collate_fn=loader._collate_fn,
            device=self.device,
            pin_memory=self.pins,
            backend=loader.backend,
            rank=0,
            world_size=1,
        )
        with again, any_number_of_workers():
            yield endless(again)

    def handover(self, rows: Sequence[int], batch_size: int, seconds: float) -> tuple[float, float]:
        if self.in_shm:
            return super().handover(rows, batch_size, seconds)
        with self.batches(1, rows, batch_size) as batches:
            samples = map(count, batches)
            stream(samples, AHEAD, 0)  # workers are started, and have made what they make ahead
            before = time.process_time()
            run = stream(samples, 0, seconds)
            spent = (time.process_time() - before) / run.images
        return 2 * spent, spent  # a worker spends about as much on sending as this process on receiving

    def spans(self, rows: Sequence[int], files: Sequence[str], samples: int) -> tuple[list[Span], float | None]:
        images = self._stored
        if not isinstance(images, StoreImages) or images.records is not None or self.dataset.remote:
            return [], None
        store, variant = images.store, images.variant
        sizes = store.field(variant, "bytes")
        shards = [(str(store.shard(variant, k)), total.bytes) for k, total in enumerate(variant.shards)]
        rng, spans = np.random.default_rng(0), list[Span]()
        for row in self.dataset.rows(np.asarray(rows)).tolist():  # where exactly a record lies does not matter
            path, whole = shards[int(rng.integers(len(shards)))]
            size = min(int(sizes[row]), whole)
            spans.append(Span(path, int(rng.integers(max(whole - size, 1))), size))
        return spans, float(sizes.mean()) * len(self.dataset)

    def images(self, rows: Sequence[int], files: Sequence[str]) -> list[bytes]:
        images = self._stored
        if not isinstance(images, StoreImages):
            return super().images(rows, files)
        places = self.dataset.rows(np.asarray(rows)).tolist()
        if images.form.codec in PLAIN and not images.decoded:
            return [bytes(images.get(place)) for place in places]
        if self.dataset.images:
            return []
        whole = self.dataset.with_crop(None)
        return [encode_record(whole[row][0].permute(1, 2, 0).numpy(), "png") for row in rows]

    def call(self, **arguments: Any) -> str:
        return f"Loader(dataset, batch_size={self.batch_size}, shuffle=True, {super().call(**arguments)})"


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


def probe(subject: Subject, rows: Sequence[int], seconds: float) -> tuple[Parts, int]:
    """Make samples in a child process, as one worker would, for about `seconds`. Begin again if the rows end.

    Returns:
        The times, and how many of the rows were read.
    """
    return apart(lambda: _probe(subject, rows, seconds))


def _probe(subject: Subject, rows: Sequence[int], seconds: float) -> tuple[Parts, int]:
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
    return parts, min(at, len(rows))
