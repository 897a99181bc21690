"""Tokens in memory, and rows of them copied without a loop.

The tokens of a store are large LMDB values. Those of a thousand documents are contiguous in the mapped file: a run. A store has
some thousand runs. One view covers all addresses from the lowest run to the highest and advances by one token a row, so a single
`index_select` copies all rows of a batch that lie within a run, and touches nothing else. A row that crosses the end of a run is
copied piece by piece.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fastdata.types import Array

GRAIN = 32_768  # at::internal::GRAIN_SIZE: below this many elements torch uses one thread
STRETCH_BITS = 14  # log2 of the number of stretches that a stream is divided into for lookups
MAX_RUNS_TO_SCAN = 4  # if more runs than this begin in one stretch, a binary search is faster
PROBE = 256  # calls between two trials of the slower way
FRESH = 0.1  # weight of the last call in the running mean


@dataclass(frozen=True)
class Runs:
    """A stream of tokens as contiguous runs of memory.

    Attributes:
        starts: where each run begins in the stream, and then the stream's length; int64 [runs + 1].
        offsets: where each run begins in `memory`; int64 [runs].
        memory: from the lowest run to the highest, one token an element. Only elements inside a run may be read.
        owners: the arrays that the memory belongs to.
    """

    starts: Array
    offsets: Array
    memory: Array
    owners: Sequence[Array]

    @classmethod
    def of(cls, arrays: Sequence[Array], dtype: np.dtype[Any]) -> Runs:
        """Return the stream of arrays of tokens that follow each other."""
        addresses = np.array([array.ctypes.data for array in arrays], np.int64)
        lengths = np.array([len(array) for array in arrays], np.int64)
        base = int(addresses.min(initial=1 << 62))
        offsets = (addresses - base) // dtype.itemsize
        nbytes = int((offsets + lengths).max(initial=0)) * dtype.itemsize
        view: Any = (ctypes.c_byte * nbytes).from_address(base) if nbytes else bytearray()
        return cls(np.append(0, np.cumsum(lengths)), offsets, np.frombuffer(view, dtype), arrays)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def only(self, begins: Array, ends: Array) -> Runs:
        """Return the stream of the parts [begin, end) of this one. They must be sorted, not empty, and must not overlap."""
        if not len(begins):
            return replace(self, starts=np.zeros(1, np.int64), offsets=np.zeros(0, np.int64))
        gap = begins[1:] != ends[:-1]
        begins, ends = begins[np.append(True, gap)], ends[np.append(gap, True)]
        first, last = (np.searchsorted(self.starts, offsets, "right") - 1 for offsets in (begins, ends - 1))
        counts = last - first + 1
        part = np.repeat(np.arange(len(begins)), counts)
        run = first[part] + np.arange(counts.sum()) - (np.cumsum(counts) - counts)[part]
        low, high = np.maximum(begins[part], self.starts[run]), np.minimum(ends[part], self.starts[run + 1])
        return replace(self, starts=np.append(0, np.cumsum(high - low)), offsets=self.offsets[run] + low - self.starts[run])

    def find(self, starts: Array, length: int) -> Array:
        """Return the offset in memory of `length` tokens from each start; -1 where they are not contiguous."""
        if not len(self.offsets):
            return np.full(len(starts), -1)
        run = self._runs_of(starts)
        whole = (starts >= 0) & (starts + length <= self.starts[run + 1])
        return np.where(whole, self.offsets[run] + starts - self.starts[run], -1)

    def _runs_of(self, starts: Array) -> Array:
        """Return the number of the run that holds each start."""
        bits, first, most = self._stretches
        if most > MAX_RUNS_TO_SCAN:
            return np.asarray(np.searchsorted(self.starts[:-1], starts, "right") - 1)
        inside = np.minimum(starts, len(self) - 1)
        run: Array = first[inside >> bits]
        for _ in range(most):
            run += self.starts[run + 1] <= inside
        return run

    @cached_property
    def _stretches(self) -> tuple[int, Array, int]:
        """Divide the stream into equal stretches. Return log2 of their length, the run at each start, and the most runs in one.

        A binary search for random places mispredicts half of its branches, which costs most of its time.
        """
        bits = max(len(self).bit_length() - STRETCH_BITS, 0)
        edges = np.arange(0, len(self) + (1 << bits) + 1, 1 << bits)
        first = np.searchsorted(self.starts[:-1], edges, "right") - 1
        return bits, first, int(np.diff(first).max())

    def copy(self, start: int, out: Array) -> None:
        """Fill `out` with the tokens from `start` on."""
        run, done = int(self.starts.searchsorted(start, "right")) - 1, 0
        while done < len(out):
            begin, end = self.starts[run : run + 2].tolist()
            count = min(len(out) - done, end - start - done)
            offset = int(self.offsets[run]) + start + done - begin
            out[done : done + count] = self.memory[offset : offset + count]
            run += 1
            done += count


class RowCopier:
    """Copies contiguous rows with one thread or with torch's threads, whichever was faster recently.

    Two threads take three quarters of the time of one. But each waits for the slowest, so on busy cores they take many times as
    long (benchmarks/LOG.md). The slower way is therefore tried again now and then.

    Args:
        flat: one-dimensional and contiguous.
        width: elements in a row; row i holds elements i to i + width.
    """

    def __init__(self, flat: Array, width: int) -> None:
        count = max(len(flat) - width + 1, 0)
        self._flat = flat
        self._width = width
        self._view = torch.from_numpy(flat).as_strided((count, width), (1, 1))
        self._whole = np.ndarray(count, f"V{width * flat.itemsize}", flat, strides=flat.strides)  # each row is one element
        self._cost = [0.0, 0.0]  # seconds a row: one thread, several threads
        self._calls = 0

    def __call__(self, offsets: Array, *, pin: bool) -> torch.Tensor:
        """Return the rows at `offsets`, int64, which must all exist."""
        self._flat.take(offsets)  # touch all rows first: these reads wait for memory together, those of a copy one by one
        if len(offsets) * self._width <= GRAIN or torch.get_num_threads() == 1:
            return self._gather_rows(offsets, pin)
        self._calls += 1
        several = (self._cost[1] < self._cost[0]) != (self._calls % PROBE == 0)
        started = time.perf_counter()
        rows = self._gather_rows(offsets, pin) if several else self._one(offsets, pin)
        self._cost[several] += ((time.perf_counter() - started) / len(offsets) - self._cost[several]) * FRESH
        return rows

    def _gather_rows(self, offsets: Array, pin: bool) -> torch.Tensor:
        rows = torch.empty((len(offsets), self._width), dtype=self._view.dtype, pin_memory=pin, device="cpu")
        return torch.index_select(self._view, 0, torch.from_numpy(offsets), out=rows)

    def _one(self, offsets: Array, pin: bool) -> torch.Tensor:
        rows = torch.from_numpy(self._whole[offsets].view(self._flat.dtype).reshape(len(offsets), self._width))
        return rows.pin_memory() if pin else rows
