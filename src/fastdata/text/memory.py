"""Tokens in memory, and rows of them copied without a loop.

The tokens of a store are large LMDB values. Those of a thousand documents are contiguous in the mapped file: a run. A store has
some thousand runs. One view covers all addresses from the lowest run to the highest and advances by one token a row, so a single
`index_select` copies all rows of a batch that lie within a run, and touches nothing else. A row that crosses the end of a run is
copied piece by piece.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fastdata.data.in_memory import InMemoryRecords, how_many
from fastdata.store.store import Store
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
        offsets: where each run begins in memory, in tokens from the lowest address; int64 [runs].
    """

    starts: Array
    offsets: Array

    def __len__(self) -> int:
        return int(self.starts[-1])

    def only(self, begins: Array, ends: Array) -> Runs:
        """Return the stream of the parts [begin, end) of this one. They must be sorted, not empty, and must not overlap."""
        if not len(begins):
            return Runs(np.zeros(1, np.int64), np.zeros(0, np.int64))
        gap = begins[1:] != ends[:-1]
        begins, ends = begins[np.append(True, gap)], ends[np.append(gap, True)]
        first, last = (np.searchsorted(self.starts, offsets, "right") - 1 for offsets in (begins, ends - 1))
        counts = last - first + 1
        part = np.repeat(np.arange(len(begins)), counts)
        run = first[part] + np.arange(counts.sum()) - (np.cumsum(counts) - counts)[part]
        low, high = np.maximum(begins[part], self.starts[run]), np.minimum(ends[part], self.starts[run + 1])
        return Runs(np.append(0, np.cumsum(high - low)), self.offsets[run] + low - self.starts[run])

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
        """Divide the stream into equal stretches: log2 of their length, the run at the begin of each, most runs in one.

        A binary search for random places mispredicts half of its branches, which costs most of its time.
        """
        bits = max(len(self).bit_length() - STRETCH_BITS, 0)
        edges = np.arange(0, len(self) + (1 << bits) + 1, 1 << bits)
        first = np.searchsorted(self.starts[:-1], edges, "right") - 1
        return bits, first, int(np.diff(first).max())


class TokenMemory:
    """All tokens of a store, mapped from disk or copied into memory that all processes share.

    It pickles small: each process maps the files when it first needs them. Its arrays must not outlive it.

    Attributes:
        dtype: numpy's uint16 or uint32.
        records: the first records, copied into memory, or None if all are on disk.
    """

    def __init__(self, store: Store) -> None:
        variant = store.manifest.variants[0]
        self.dtype = np.dtype(variant.form.dtype)
        self._reader = store.reader(variant)
        self.records: InMemoryRecords | None = None

    def copy_to_memory(self, store: Store, max_bytes: int | None, *, shared: bool) -> None:
        """Copy so many bytes of tokens, or all, into memory. shared: hold them once for all processes of this machine.

        A StoreError says that they do not fit into free memory, a FormatError that a record is not what was written.
        """
        variant = store.manifest.variants[0]
        sizes, key = store.index(variant).lengths, store.identity(variant) if shared else None
        sizes = sizes[: how_many(sizes, max_bytes)]
        self.records = InMemoryRecords(sizes, store.reader(variant, check=True).get, "record", key)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("opened", "_parts")}

    @cached_property
    def opened(self) -> tuple[Runs, Array]:
        """All tokens in the store's order, and the memory from the lowest run to the highest, one token an element.

        Only elements inside a run may be read.
        """
        first = 0 if self.records is None else len(self.records)
        parts = [np.frombuffer(self._reader.get(k), self.dtype) for k in range(first, len(self._reader))]
        if self.records is not None and first:
            parts = [self.records.bytes.view(self.dtype), *parts]
        self._parts = parts  # which keep the memory of a remote store
        addresses = np.array([part.ctypes.data for part in parts], np.int64)
        lengths = np.array([len(part) for part in parts], np.int64)
        base = int(addresses.min(initial=1 << 62))
        offsets = (addresses - base) // self.dtype.itemsize
        nbytes = int((offsets + lengths).max(initial=0)) * self.dtype.itemsize
        view: Any = (ctypes.c_byte * nbytes).from_address(base) if nbytes else bytearray()
        return Runs(np.append(0, np.cumsum(lengths)), offsets), np.frombuffer(view, self.dtype)

    def copy(self, runs: Runs, start: int, out: Array) -> None:
        """Fill `out` with the tokens of a stream from `start` on."""
        _, flat = self.opened
        run, done = int(runs.starts.searchsorted(start, "right")) - 1, 0
        while done < len(out):
            begin, end = runs.starts[run : run + 2].tolist()
            count = min(len(out) - done, end - start - done)
            offset = int(runs.offsets[run]) + start + done - begin
            out[done : done + count] = flat[offset : offset + count]
            run += 1
            done += count


class RowCopier:
    """Copies contiguous rows with one thread or with torch's threads, whichever was faster recently.

    Two threads take three quarters of the time of one. But the first waits for the last, so on busy cores they take many times as
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
