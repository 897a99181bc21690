"""Batches without end, for measurements that no epoch interrupts."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from fastdata.errors import FastDataError
from fastdata.torch_private import end_kept_workers

__all__ = ["Rows", "Shuffled", "any_number_of_workers", "endless", "kept"]


class Shuffled:
    """Batches of rows in random order, without end."""

    def __init__(self, rows: Sequence[int], batch_size: int) -> None:
        self._rows, self._size = Rows(rows), batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self._rows)
        while True:
            yield list(itertools.islice(rows, self._size))


class Rows:
    """Rows in random order, without end."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = np.asarray(rows)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(0)
        while True:
            yield from rng.permutation(self._rows).tolist()


@contextmanager
def any_number_of_workers() -> Iterator[None]:
    """Silence torch's warning of more workers than cores, which are tried on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


@contextmanager
def kept(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """Yield batches without end, and end the workers."""
    try:
        yield endless(loader)
    finally:
        if loader.num_workers:
            end_kept_workers(loader)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        batches = 0
        for batch in loader:
            batches += 1
            yield batch
            del batch  # or its memory could not be used for the next
        if not batches:
            raise FastDataError(f"a pass over {type(loader).__name__} yields no batches, so there is nothing to measure")
