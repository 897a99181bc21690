"""Gathers batches of tokens and tables in this process: to send them from a worker would cost more."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests


def is_direct(dataset: Any) -> bool:
    """Return whether a dataset finds the rows of many batches at once (`locate`) and copies the rows of one batch (`gather`)."""
    return hasattr(dataset, "locate") and hasattr(dataset, "gather")


class Direct(Engine):
    """The engine of datasets that `is_direct` accepts.

    Args:
        dataset: has `locate(indices, seed=, epoch=, repeats=)`, which returns an array with one row per sample, and
            `gather(rows, pin=)`, which returns the batch. If it has `at_once`, one call gathers up to that many rows, and
            several batches are views of these; `gather` then returns a tensor or a tuple of tensors.
        requests: the requests, in order.
        pin: page-lock the batches.
    """

    def __init__(self, dataset: Any, requests: Requests, *, pin: bool) -> None:
        self._dataset = dataset
        self._requests = requests
        self._pin = pin and torch.cuda.is_available()
        self._generation = -1
        self.close()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        if generation != self._generation:
            self._generation = generation
            self.close()
        if not self._finished:
            self._make()
        return self._finished.popleft()

    def _make(self) -> None:
        """Make some batches. To spread the cost of a call, locate the rows of many and gather several at once."""
        started = time.perf_counter()
        if not self._located:
            self._located.extend(self._requests.take())
            first, indices = self._located[0], np.concatenate([request.indices for request in self._located])
            repeats = None if first.repeats is None else np.concatenate([request.repeats for request in self._located])
            self._rows = self._dataset.locate(indices, seed=first.seed, epoch=first.epoch, repeats=repeats)
            self._count = max(getattr(self._dataset, "at_once", 1) // max(len(request.indices) for request in self._located), 1)
        group = [self._located.popleft() for _ in range(min(self._count, len(self._located)))]
        sizes = [len(request.indices) for request in group]
        data = self._dataset.gather(self._rows[: sum(sizes)], pin=self._pin)
        self._rows = self._rows[sum(sizes) :]
        work_s = (time.perf_counter() - started) / len(group)
        batches = [data] if len(group) == 1 else _parts(data, sizes)
        self._finished.extend((Reply(request, work_s=work_s), batch) for request, batch in zip(group, batches, strict=True))

    def ready(self) -> bool:
        return bool(self._finished or self._located) or self._requests.known()

    def close(self) -> None:
        self._located = deque[Request]()  # whose rows were found
        self._finished = deque[tuple[Reply, Any]]()


def _parts(data: Any, rows: list[int]) -> Iterable[Any]:
    """Return views of parts of a tensor, or of each tensor of a tuple."""
    if isinstance(data, tuple):
        return zip(*(each.split_with_sizes(rows) for each in data), strict=True)
    views: tuple[Any, ...] = data.split_with_sizes(rows)
    return views
