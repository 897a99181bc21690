"""Batches that are one gather, of tokens and tables. This process makes them: sending them from a worker would cost more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests


def is_direct(dataset: Any) -> bool:
    """Return whether a dataset finds the rows of many batches at once (`locate`) and copies those of one batch (`gather`)."""
    return hasattr(dataset, "locate") and hasattr(dataset, "gather")


class Direct(Engine):
    """The engine of such datasets.

    Args:
        dataset: has `locate(indices, seed=, epoch=, repeats=)`, which returns an array with one row per sample, and
            `gather(rows, pin=)`, which returns the batch. If it has `at_once`, that many rows are gathered for several batches,
            which are views of them; `gather` then returns a tensor or a tuple of tensors.
        requests: the requests, in order.
        pin: page-lock the batches.
    """

    def __init__(self, dataset: Any, requests: Requests, *, pin: bool) -> None:
        self._dataset = dataset
        self._requests = requests
        self._pin = pin and torch.cuda.is_available()
        self._generation = -1
        self._batches = self._make_batches()

    def receive(self, generation: int) -> tuple[Reply, Any]:
        if generation != self._generation:
            self._generation = generation
            self._batches = self._make_batches()
        return next(self._batches)

    def _make_batches(self) -> Iterator[tuple[Reply, Any]]:
        """Yield batches without end. To spread the cost of a call, locate the rows of many batches and gather several at once."""
        while True:
            started = time.perf_counter()
            requests = self._requests.take()
            first, indices = requests[0], np.concatenate([request.indices for request in requests])
            repeats = None if first.repeats is None else np.concatenate([request.repeats for request in requests])
            located = self._dataset.locate(indices, seed=first.seed, epoch=first.epoch, repeats=repeats)
            stop = 0
            for group in _groups(requests, getattr(self._dataset, "at_once", 1)):
                rows = [len(request.indices) for request in group]
                start, stop = stop, stop + sum(rows)
                data = self._dataset.gather(located[start:stop], pin=self._pin)
                work_s = (time.perf_counter() - started) / len(group)
                for request, batch in zip(group, [data] if len(group) == 1 else _parts(data, rows), strict=True):
                    yield Reply(request, (), work_s), batch
                started = time.perf_counter()

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        self._batches = self._make_batches()


def _groups(requests: list[Request], at_once: int) -> Iterator[list[Request]]:
    """Divide requests into groups of at most `at_once` rows, or of one request."""
    group, rows = list[Request](), 0
    for request in requests:
        rows += len(request.indices)
        if group and rows > at_once:
            yield group
            group, rows = [], len(request.indices)
        group.append(request)
    yield group


def _parts(data: Any, rows: list[int]) -> Iterable[Any]:
    """Return views of parts of a tensor, or of each tensor of a tuple."""
    if isinstance(data, tuple):
        return zip(*(each.split_with_sizes(rows) for each in data), strict=True)
    views: tuple[Any, ...] = data.split_with_sizes(rows)
    return views
