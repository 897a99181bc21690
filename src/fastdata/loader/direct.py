"""Batches that are one gather: of tokens and tables. Made in this process, since sending them from another would cost more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests
from fastdata.loader.slots import Slots

__all__ = ["Direct", "is_direct"]

Array = np.ndarray[Any, np.dtype[Any]]


def is_direct(dataset: Any) -> bool:
    """Whether a dataset finds all rows of many batches at once (`locate`), and copies those of one (`gather`)."""
    return hasattr(dataset, "locate") and hasattr(dataset, "gather")


class Direct:
    """The engine of such datasets.

    Args:
        dataset: with `locate(indices, seed=, epoch=, repeats=)`, which returns an array with one row for each sample, and
            `gather(rows, pin=)`, which returns the batch. If it has `at_once`, so many rows are gathered for several batches,
            which are views of them; then what it gathers is a tensor, or a tuple of tensors.
        requests: what is asked for, in order.
        pin: page-lock the batches.
    """

    slots: Slots | None = None

    def __init__(self, dataset: Any, requests: Requests, *, pin: bool) -> None:
        self._dataset, self._requests, self._pin = dataset, requests, pin and torch.cuda.is_available()
        self._generation, self._batches = -1, self._made()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation."""
        started = time.perf_counter()
        if generation != self._generation:
            self._generation, self._batches = generation, self._made()
        request, data = next(self._batches)
        return Reply(request, images=False, work_s=time.perf_counter() - started), data

    def _made(self) -> Iterator[tuple[Request, Any]]:
        """Batches without end: the rows of many are found at once, and those of some copied, to spread the cost of a call."""
        while True:
            requests = self._requests.take()
            located, rows = self._locate(requests), len(requests[0].indices)
            count = max(getattr(self._dataset, "at_once", 1) // rows, 1)
            for k in range(0, len(requests), count):
                some = requests[k : k + count]
                data = self._dataset.gather(located[k * rows : (k + count) * rows], pin=self._pin)
                yield from zip(some, [data] if len(some) == 1 else _parts(data, len(some)), strict=True)

    def _locate(self, requests: list[Request]) -> Array:
        first = requests[0]
        indices = np.concatenate([request.indices for request in requests])
        repeats = None if first.repeats is None else np.concatenate([request.repeats for request in requests])
        located: Array = self._dataset.locate(indices, seed=first.seed, epoch=first.epoch, repeats=repeats)
        return located

    def ready(self) -> bool:
        return True

    def alive(self) -> bool:
        return True

    def died(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        self._batches = self._made()


def _parts(data: Any, count: int) -> Iterable[Any]:
    """Equal parts of a tensor, or of each tensor of a tuple, which lie in its memory."""
    return zip(*(each.chunk(count) for each in data), strict=True) if isinstance(data, tuple) else data.chunk(count)
