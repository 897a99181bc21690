"""Records in memory, shared by all processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from tqdm import tqdm

from fastdata.errors import StoreError
from fastdata.machine import available_cores, free_memory
from fastdata.shared_memory import SharedArray

__all__ = ["InMemoryRecords", "how_many", "progress_bar"]

Array = np.ndarray[Any, np.dtype[Any]]

FILL_STEP = 64  # records per task: a million futures would take more memory than the records


def how_many(sizes: Array, max_bytes: int | None, disk: str) -> int:
    """Return how many of the first records to keep in memory.

    Args:
        sizes: bytes of each record, int64 [n].
        max_bytes: the most bytes to keep; None: all records.
        disk: the dataset that reads from disk, for the message.

    Raises:
        StoreError: the records do not fit into free memory.
        ValueError: max_bytes is negative.
    """
    if max_bytes is not None and max_bytes < 0:
        raise ValueError(f"max_bytes is {max_bytes}, but must not be negative")
    ends = np.concatenate([[0], np.cumsum(sizes)])
    count = len(sizes) if max_bytes is None else int(np.searchsorted(ends, max_bytes, "right")) - 1
    need, free = int(ends[count]), free_memory()
    if need > free:
        raise StoreError(
            f"the data takes {need / 1e9:.2f} GB of memory, but {free / 1e9:.2f} GB are free: "
            f"give max_bytes={int(free * 0.8)} to keep the rest on disk, or use {disk}"
        )
    return count


class InMemoryRecords:
    """The first records of a source, in shared memory.

    Args:
        sizes: bytes of each record, int64 [n].
        read: returns a record's bytes by its number, as any buffer. Called from several threads.
        unit: what a progress bar counts.

    Attributes:
        ends: 0, and where each record ends in the memory; int64 [n + 1].
        bytes: the memory, uint8.

    Raises:
        StoreError: a record has another length than `sizes` says, or shared memory is not available.
    """

    def __init__(self, sizes: Array, read: Callable[[int], Any], unit: str) -> None:
        self._ends = SharedArray.of(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        self._bytes = SharedArray(int(self._ends.array[-1]))

        def load(first: int) -> int:
            stop = min(first + FILL_STEP, len(self))
            for k in range(first, stop):
                self._put(k, np.frombuffer(read(k), np.uint8))
            return stop - first

        with ThreadPoolExecutor(available_cores()) as pool, progress_bar("into memory", len(self), unit) as bar:
            for done in pool.map(load, range(0, len(self), FILL_STEP)):
                bar.update(done)

    def _put(self, index: int, data: Array) -> None:
        start, end = self._ends.array[index : index + 2]
        if len(data) != end - start:
            raise StoreError(f"record {index} has {len(data)} bytes, but {end - start} were expected: it changed while it was read")
        self._bytes.array[start:end] = data

    @property
    def ends(self) -> Array:
        return self._ends.array

    @property
    def bytes(self) -> Array:
        return self._bytes.array

    def __len__(self) -> int:
        return len(self._ends.array) - 1

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record, which must not be written to."""
        start, end = self._ends.array[index : index + 2]
        return self._bytes.array[start:end].data


def progress_bar(what: str, total: int, unit: str) -> Any:
    """Return a progress bar that shows on a terminal only."""
    return tqdm(desc=what, unit=unit, total=total, disable=None, delay=1.0)
