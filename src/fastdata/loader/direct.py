"""Batches that are one gather: of tokens and tables. Made in this process, since sending them from another would cost more."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests

__all__ = ["Direct", "is_direct"]


def is_direct(dataset: Any) -> bool:
    """Whether a dataset finds all rows of many batches at once (`locate`), and copies those of one (`gather`)."""
    return hasattr(dataset, "locate") and hasattr(dataset, "gather")


class Direct:
    """Stands in the place of `Workers`.

    Args:
        dataset: with `locate(indices, seed=, epoch=, repeats=)`, which returns an array with one row for each sample, and
            `gather(rows, pin=)`, which returns the batch.
        requests: what is asked for, in order.
        pin: page-lock the batches.
    """

    slots = None

    def __init__(self, dataset: Any, requests: Requests, *, pin: bool) -> None:
        self._dataset, self._requests, self._pin = dataset, requests, pin and torch.cuda.is_available()
        self._ready: deque[tuple[Request, Any]] = deque()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation."""
        started = time.perf_counter()
        if not self._ready or self._ready[0][0].generation != generation:
            self._locate()
        request, rows = self._ready.popleft()
        data = self._dataset.gather(rows, pin=self._pin)
        return Reply(request, images=False, work_s=time.perf_counter() - started), data

    def _locate(self) -> None:
        """Find the rows of the next batches at once: numpy's cost per call is spread over many."""
        requests = self._requests.take()
        first = requests[0]
        indices = np.concatenate([request.indices for request in requests])
        repeats = None if first.repeats is None else np.concatenate([request.repeats for request in requests])
        rows = self._dataset.locate(indices, seed=first.seed, epoch=first.epoch, repeats=repeats)
        ends = np.cumsum([len(request.indices) for request in requests]).tolist()
        self._ready = deque((r, rows[end - len(r.indices) : end]) for r, end in zip(requests, ends, strict=True))

    def started(self) -> bool:
        return True

    def alive(self) -> bool:
        return True

    def died(self, error: BaseException) -> bool:
        return False

    def keep_while_copied(self, images: torch.Tensor) -> None:
        """Nothing to do: torch's allocator of page-locked memory keeps what a copy still reads."""

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self._ready.clear()
