"""Records held in memory, once for all processes: how many there is room for, and their bytes."""

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

FILL_STEP = 64  # records a task: a million futures would weigh more than what they load


def how_many(sizes: Array, max_bytes: int | None, disk: str) -> int:
    """How many of the first records are to be held. disk: the dataset that holds nothing, for the message.

    Args:
        sizes: bytes of each record, int64 [n].
        max_bytes: what they may take; None: all of them, or a clear error.

    Raises:
        StoreError: they do not fit into the memory that is free.
        ValueError: max_bytes is negative.
    """
    if max_bytes is not None and max_bytes < 0:
        raise ValueError(f"max_bytes is {max_bytes}, but must not be negative")
    ends = np.concatenate([[0], np.cumsum(sizes)])
    count = len(sizes) if max_bytes is None else int(np.searchsorted(ends, max_bytes, "right")) - 1
    need, free = int(ends[count]), free_memory()
    if need > free:
        raise StoreError(
            f"{need / 1e9:.2f} GB are to be held in memory, {free / 1e9:.2f} GB are free: "
            f"give max_bytes={int(free * 0.8)} to keep the rest on disk, or use {disk}"
        )
    return count


class InMemoryRecords:
    """The first records of a source, held once in shared memory.

    Args:
        sizes: bytes of each of them, int64 [n].
        read: their bytes, by number, as anything that numpy takes for a buffer. Called from several threads.
        unit: what a progress bar counts.

    Attributes:
        ends: where in the memory each ends, after a 0; int64 [n + 1].
        bytes: the memory, uint8.

    Raises:
        StoreError: a record is not as long as it should be, or shared memory can't be had.
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
            raise StoreError(f"record {index} has {len(data)} bytes, {end - start} were expected: it changed while it was read")
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
        """The bytes of a record. Not to be written to."""
        start, end = self._ends.array[index : index + 2]
        return self._bytes.array[start:end].data


def progress_bar(what: str, total: int, unit: str) -> Any:
    """A progress bar on a terminal, nothing elsewhere."""
    return tqdm(desc=what, unit=unit, total=total, disable=None, delay=1.0)
