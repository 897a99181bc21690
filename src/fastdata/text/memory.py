"""Tokens where they lie in memory, and rows of them copied without a loop.

The tokens of a store are large LMDB values, so those of a thousand documents are neighbours in the mapped file, and all that there
are make some thousand runs. A row that lies within a run is one copy. One view over the whole range of addresses, from the lowest
run to the highest, that advances by one token a row, makes all rows of a batch one call of `index_select`; nothing but the rows
asked for is touched. A row that crosses the end of a run is put together piece by piece.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fastdata.data.in_memory import how_many
from fastdata.errors import FormatError
from fastdata.shared_memory import SharedArray
from fastdata.store.store import Store

__all__ = ["RowCopier", "Runs", "TokenMemory"]

Array = np.ndarray[Any, np.dtype[Any]]

GRAIN = 32_768  # at::internal::GRAIN_SIZE: elements below which torch does not share work among threads
STRETCH_BITS = 14  # a stream is looked up in so many stretches, 2 to the power of this
FEW = 4  # runs that begin in one: beyond that a binary search is quicker
PROBE = 256  # calls from one trial of the slower way to the next
FRESH = 0.1  # how much the last call counts


@dataclass(frozen=True)
class Runs:
    """A stream of tokens as pieces of memory.

    Attributes:
        starts: where in the stream each begins, and last the stream's length; int64 [runs + 1].
        places: where in memory each begins, in tokens from the lowest; int64 [runs].
    """

    starts: Array
    places: Array

    def __len__(self) -> int:
        return int(self.starts[-1])

    def only(self, begins: Array, ends: Array) -> Runs:
        """The stream of some parts of this one, [begin, end) each, which are in order, not empty, and apart or touching."""
        if not len(begins):
            return Runs(np.zeros(1, np.int64), np.zeros(0, np.int64))
        gap = begins[1:] != ends[:-1]
        begins, ends = begins[np.append(True, gap)], ends[np.append(gap, True)]
        first, last = (np.searchsorted(self.starts, places, "right") - 1 for places in (begins, ends - 1))
        counts = last - first + 1
        part = np.repeat(np.arange(len(begins)), counts)
        run = first[part] + np.arange(counts.sum()) - (np.cumsum(counts) - counts)[part]
        low, high = np.maximum(begins[part], self.starts[run]), np.minimum(ends[part], self.starts[run + 1])
        return Runs(np.append(0, np.cumsum(high - low)), self.places[run] + low - self.starts[run])

    def find(self, starts: Array, length: int) -> Array:
        """The place in memory of `length` tokens from each start; -1 where they are not neighbours."""
        if not len(self.places):
            return np.full(len(starts), -1)
        run = self._runs_of(starts)
        whole = (starts >= 0) & (starts + length <= self.starts[run + 1])
        return np.where(whole, self.places[run] + starts - self.starts[run], -1)

    def _runs_of(self, starts: Array) -> Array:
        """The number of the run that each start lies in."""
        bits, first, most = self._stretches
        if most > FEW:
            return np.asarray(np.searchsorted(self.starts[:-1], starts, "right") - 1)
        inside = np.minimum(starts, len(self) - 1)
        run: Array = first[inside >> bits]
        for _ in range(most):
            run += self.starts[run + 1] <= inside
        return run

    @cached_property
    def _stretches(self) -> tuple[int, Array, int]:
        """The stream in equal stretches: bits of their length; the run in which each begins; how many more may begin in one.

        A binary search for places drawn at random mispredicts half of its branches, which costs most of its time.
        """
        bits = max(len(self).bit_length() - STRETCH_BITS, 0)
        edges = np.arange(0, len(self) + (1 << bits) + 1, 1 << bits)
        first = np.searchsorted(self.starts[:-1], edges, "right") - 1
        return bits, first, int(np.diff(first).max())


class TokenMemory:
    """All tokens of a store, mapped from disk, or held in memory that all processes share.

    Pickles small; a process maps the files when it first needs them. Not for use after the object is gone.

    Args:
        held: copy them into memory.
        max_bytes: of the memory; the other tokens are mapped. None: all, or a clear error.

    Attributes:
        dtype: numpy's uint16 or uint32.
        counts: tokens of each shard.

    Raises:
        StoreError: they don't fit into the memory that is free.
        FormatError: the records are not what the manifest says.
    """

    def __init__(self, store: Store, *, held: bool, max_bytes: int | None = None) -> None:
        section, variant = store.manifest.section("tokens"), store.manifest.variants[0]
        self.dtype, self.counts = np.dtype(variant.form.dtype), section.counts
        self._reader, self._records = store.reader(variant), store.manifest.shard_records(variant)
        self._held: SharedArray | None = None
        self._held_records = 0
        self._process = -1
        if held:
            self._hold(max_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_runs", "_flat")} | {"_process": -1}

    def _open(self) -> None:
        """Find the runs; again in a forked child, whose files are mapped elsewhere."""
        if self._process == os.getpid():
            return
        parts = [np.frombuffer(self._reader.get(k), self.dtype) for k in range(self._held_records, len(self._reader))]
        if self._held is None:
            ends = np.cumsum(self._records)
            found = tuple(sum(map(len, parts[end - n : end])) for end, n in zip(ends, self._records, strict=True))
            if found != self.counts:
                raise FormatError("the records hold other numbers of tokens than the manifest says; run fastdata verify")
        elif len(self._held.array):
            parts = [self._held.array, *parts]
        addresses = np.array([part.ctypes.data for part in parts], np.int64)
        lengths = np.array([len(part) for part in parts], np.int64)
        base = int(addresses.min(initial=1 << 62))
        places = (addresses - base) // self.dtype.itemsize
        self._runs = Runs(np.append(0, np.cumsum(lengths)), places)
        self._flat = _memory(base, int((places + lengths).max(initial=0)), self.dtype) if parts else np.zeros(0, self.dtype)
        self._process = os.getpid()

    @property
    def runs(self) -> Runs:
        """All tokens, in the store's order."""
        self._open()
        return self._runs

    @property
    def flat(self) -> Array:
        """Memory from the lowest run to the highest, one token an element. Only what runs hold may be touched."""
        self._open()
        return self._flat

    def copy(self, runs: Runs, start: int, out: Array) -> None:
        """Fill a row with the tokens of a stream from `start` on."""
        flat, run, done = self.flat, int(runs.starts.searchsorted(start, "right")) - 1, 0
        while done < len(out):
            begin, end = runs.starts[run : run + 2].tolist()
            count = min(len(out) - done, end - start - done)
            place = int(runs.places[run]) + start + done - begin
            out[done : done + count] = flat[place : place + count]
            run, done = run + 1, done + count

    def _hold(self, max_bytes: int | None) -> None:
        """Copy the first records, as many as there may be, into one piece of memory."""
        runs, itemsize = self.runs, self.dtype.itemsize
        count = how_many(np.diff(runs.starts) * itemsize, max_bytes, "TokenDataset")
        held = SharedArray(int(runs.starts[count]), self.dtype)
        self.copy(runs, 0, held.array)
        self._held, self._held_records, self._process = held, count, -1


class RowCopier:
    """Copies rows of neighbouring elements, by one thread or by torch's, whichever has been quicker lately.

    Two threads take three quarters of the time of one. But each waits for the last, so where cores are busy they take many times as
    long (benchmarks/LOG.md). So the way that looks slower is tried again now and then.

    Args:
        flat: one-dimensional, in one piece.
        width: of a row; row i holds elements i to i + width.
    """

    def __init__(self, flat: Array, width: int) -> None:
        count = max(len(flat) - width + 1, 0)
        self._flat, self._width = flat, width
        self._view = torch.from_numpy(flat).as_strided((count, width), (1, 1))
        self._whole = np.ndarray(count, f"V{width * flat.itemsize}", flat, strides=flat.strides)  # a row is one element
        self._cost, self._calls = [0.0, 0.0], 0  # seconds a row, of one thread and of several

    def __call__(self, places: Array, *, pin: bool) -> torch.Tensor:
        """The rows at these places, int64, which must lie within what there is."""
        self._flat.take(places)  # touch all rows first: the core waits for many of them at once, and in a copy for one by one
        if len(places) * self._width <= GRAIN or torch.get_num_threads() == 1:
            return self._several(places, pin)
        self._calls += 1
        several = (self._cost[1] < self._cost[0]) != (self._calls % PROBE == 0)
        started = time.perf_counter()
        rows = self._several(places, pin) if several else self._one(places, pin)
        self._cost[several] += ((time.perf_counter() - started) / len(places) - self._cost[several]) * FRESH
        return rows

    def _several(self, places: Array, pin: bool) -> torch.Tensor:
        rows = torch.empty((len(places), self._width), dtype=self._view.dtype, pin_memory=pin, device="cpu")
        return torch.index_select(self._view, 0, torch.from_numpy(places), out=rows)

    def _one(self, places: Array, pin: bool) -> torch.Tensor:
        rows = torch.from_numpy(self._whole[places].view(self._flat.dtype).reshape(len(places), self._width))
        return rows.pin_memory() if pin else rows


def _memory(address: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Memory of this process as an array that does not own it."""

    class Raw:
        __array_interface__ = {"data": (address, False), "shape": (count,), "typestr": dtype.str, "version": 3}

    return np.asarray(Raw())
