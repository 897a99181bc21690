"""Records in memory, held once for all processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from tqdm import tqdm

from fastdata.errors import StoreError
from fastdata.system import node_memory
from fastdata.system.machine import available_cores
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array

LESS = "lower max_bytes to keep more on disk, or read all from disk"  # if there is no memory for records
FILL_STEP = 64  # records per task: a million futures would take more memory than the records


def how_many(sizes: Array, max_bytes: int | None) -> int:
    """Return how many of the first records fit into `max_bytes` of memory, or all if it is None. sizes: int64 [n], in bytes."""
    if max_bytes is not None and max_bytes < 0:
        raise ValueError(f"max_bytes is {max_bytes}, but must not be negative")
    return len(sizes) if max_bytes is None else int(np.searchsorted(np.cumsum(sizes), max_bytes, "right"))


class InMemoryRecords:
    """The first records of a source, in shared memory.

    Args:
        sizes: bytes of each record, int64 [n].
        read: returns a record's bytes by its number, as any buffer. Called from several threads.
        unit: what a progress bar counts.
        key: identifies the records that all processes of this machine share. None: only this process and its children do.

    Attributes:
        ends: 0, and where each record ends in the memory; int64 [n + 1].
        bytes: the memory, uint8.

    Raises:
        StoreError: a record has another length than `sizes` says, or shared memory is not available.
    """

    def __init__(self, sizes: Array, read: Callable[[int], Any], unit: str, key: str | None) -> None:
        nbytes = int(np.sum(sizes)) + 8 * (len(sizes) + 1)
        memory = node_memory.once(key, nbytes, np.uint8, lambda memory: _fill(memory, sizes, read, unit), LESS)
        self.__setstate__((memory, len(sizes)))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record, which must not be written to."""
        start, end = self.ends[index : index + 2]
        return self.bytes[start:end].data

    def __getstate__(self) -> tuple[SharedArray, int]:
        return self._memory, len(self)

    def __setstate__(self, state: tuple[SharedArray, int]) -> None:
        self._memory, count = state
        self.ends, self.bytes = _parts(self._memory.array, count)


def _parts(memory: Array, count: int) -> tuple[Array, Array]:
    """Return where records end, and their bytes."""
    edge = 8 * (count + 1)
    return memory[:edge].view(np.int64), memory[edge:]


def _fill(memory: Array, sizes: Array, read: Callable[[int], Any], unit: str) -> None:
    ends, data = _parts(memory, len(sizes))
    np.cumsum(sizes, out=ends[1:])

    def load(first: int) -> int:
        stop = min(first + FILL_STEP, len(sizes))
        for k in range(first, stop):
            record = np.frombuffer(read(k), np.uint8)
            if len(record) != sizes[k]:
                raise StoreError(f"record {k} has {len(record)} bytes, but {sizes[k]} were expected: its file changed; try again")
            data[ends[k] : ends[k + 1]] = record
        return stop - first

    bar = tqdm(desc="into memory", unit=unit, total=len(sizes), disable=None, delay=1.0)  # None: on a terminal only
    with ThreadPoolExecutor(available_cores()) as pool, bar:
        for done in pool.map(load, range(0, len(sizes), FILL_STEP)):
            bar.update(done)
