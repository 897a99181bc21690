"""What runs in a worker: a request becomes a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate, get_worker_info

from fastdata.data.images import ImageDataset
from fastdata.data.random import lent_generators, loose_seeds, repeated

__all__ = ["Fetch", "Reply", "Request", "as_is", "one_cv2_thread", "quiet_worker"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Request:
    """One batch of one rank.

    Attributes:
        generation: counts the loader's changes of mind; replies to an earlier generation are dropped.
        epoch, start, stop: the global batch, as places of the epoch.
        indices: of this rank's rows, int64.
        repeats: which time in this epoch the user's sampler draws each; None: the first.
        valid: rows that are real; the others repeat.
        size: stored size to read; None: the dataset's own.
        seed: of the loader.
    """

    generation: int
    epoch: int
    start: int
    stop: int
    indices: Array
    repeats: Array | None
    valid: int
    size: int | None
    seed: int


@dataclass(frozen=True)
class Reply:
    """A batch on its way to the loader. images: whether data[0] is [n, H, W, C], to be shown as [n, C, H, W].

    error: of a worker, for the loader to raise if it still wants this batch.
    """

    request: Request
    images: bool
    work_s: float
    error: Any = None


class Fetch(torch.utils.data.Dataset[Any]):
    """A dataset that takes whole requests, as torch's DataLoader hands them to `__getitems__`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._sized: dict[int, Any] = {}

    def __getitems__(self, request: Request) -> tuple[Reply, Any]:
        started = time.perf_counter()
        data, error = None, None
        try:
            data = self._read(request)
        except Exception:
            if get_worker_info() is None:
                raise
            error = ExceptionWrapper(where="in a worker of fastdata's Loader")  # type: ignore[no-untyped-call]
        return Reply(request, isinstance(self.dataset, ImageDataset), time.perf_counter() - started, error), data

    def _read(self, request: Request) -> Any:
        indices, repeats = request.indices, request.repeats
        if isinstance(self.dataset, ImageDataset):
            return self._at(request.size).read_batch(indices, seed=request.seed, epoch=request.epoch, repeats=repeats)
        seeds = loose_seeds(request.seed, request.epoch, repeated(indices, repeats))
        with lent_generators() as reseed:
            if hasattr(self.dataset, "__getitems__"):  # takes the batch as one, so its random numbers depend on the batch
                reseed(seeds[0])
                return default_collate(self.dataset.__getitems__(indices.tolist()))
            items = []
            for index, seed in zip(indices.tolist(), seeds, strict=True):
                reseed(seed)
                items.append(self.dataset[index])
        return default_collate(items)

    def _at(self, size: int | None) -> Any:
        if size is None:
            return self.dataset
        if size not in self._sized:
            self._sized[size] = self.dataset.with_size(size)
        return self._sized[size]


def as_is(data: Any) -> Any:
    """The batches are made: nothing is left to collate."""
    return data


def quiet_worker(_: int) -> None:
    """One thread a worker: the workers are the parallelism."""
    if cv2.getNumThreads() != 1:  # a forked worker has it from `one_cv2_thread`
        cv2.setNumThreads(1)


@contextmanager
def one_cv2_thread() -> Iterator[None]:
    """For the time of a fork: a child that inherits OpenCV's pool hangs in setNumThreads, waiting for threads it does not have."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
