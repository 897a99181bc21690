"""A Loader writes which shards it will read, and when, into a file; the downloader fetches and evicts shards by it.

A schedule is JSON: [[a RemoteFile, [[first, last], ...]], ...]: a shard is used from one sample to another, counted from the
beginning of the schedule. A file is replaced as a whole. The clock beside it is an int64, which the Loader changes in place: how
many samples its workers have read.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from fastdata.errors import StoreError
from fastdata.remote.cache import CLOCK, SCHEDULE, RemoteFile, map_number, write_whole
from fastdata.remote.reader import RemoteStore, remove_files
from fastdata.store.store import Use
from fastdata.types import Array

Chunks = Callable[[int, int], tuple[Array, int, int]]

SAMPLES_MORE = 1 << 16  # scheduled before the first batch, and each time that more batches are made
MAX_SCHEDULED_SAMPLES = 1 << 20  # scheduled ahead


class ScheduleWriter:
    """Tells the downloaders of a dataset's remote stores which shards one rank will read, in the order of its samples.

    Args:
        uses: returns what a dataset reads of remote stores for the samples of an epoch.
        chunk: returns this rank's samples of an epoch from a position on, some ten thousand, and the epoch and the position after
            them; no samples: they are not known yet.
    """

    def __init__(self, uses: Callable[[int, Array], Sequence[Use]], chunk: Chunks) -> None:
        self._uses, self._chunk = uses, chunk
        self.restart(0, 0)

    def restart(self, epoch: int, start: int) -> None:
        """Begin a new schedule at a position of an epoch; `extend` writes it."""
        self._files: dict[RemoteStore, _ScheduleFile] = {}
        self._at = epoch, start
        self._scheduled = self._drawn = self._at_once = 0

    def extend(self, epoch: int, at_once: int) -> None:
        """Write more of the schedule, or the beginning of a new one: a million samples, or what is left of this epoch and the next.

        at_once: how many samples all workers read at a time. A StoreError says that the cache is too small for them.
        """
        self._at_once, is_new = at_once, not self._scheduled
        until = min(self._scheduled + SAMPLES_MORE, self._drawn + MAX_SCHEDULED_SAMPLES)
        while self._scheduled < until and self._at[0] <= epoch + 1:
            ids, *after = self._chunk(*self._at)
            if not len(ids):
                break
            for use in self._uses(after[0], ids):
                if isinstance(use.store, RemoteStore):
                    if use.store not in self._files:
                        self._files[use.store] = _ScheduleFile(use.store)
                    self._files[use.store].add(use.variant, use.samples + self._scheduled, use.shards, at_once)
            self._scheduled += len(ids)
            self._at = after[0], after[1]
        self._tick()
        for file in self._files.values():
            if is_new:
                file.check_room(at_once)
            file.write()

    def draw(self, samples: int) -> None:
        """Say that a batch of so many samples is handed to the workers."""
        self._drawn += samples
        self._tick()

    def _tick(self) -> None:
        for file in self._files.values():
            file.clock[0] = max(self._drawn - self._at_once, 0)


class _ScheduleFile:
    """What one Loader will read of one store, written for its downloader. The files go with the object."""

    def __init__(self, store: RemoteStore) -> None:
        self._store, self._session = store, store.session  # whose files are removed with it
        stem = self._session.stem()
        self._path, self.clock = Path(f"{stem}{SCHEDULE}"), map_number(Path(f"{stem}{CLOCK}"))
        self._uses: dict[RemoteFile, list[list[int]]] = {}  # the first and the last samples of its stretches, in order
        weakref.finalize(self, remove_files, os.getpid(), stem)

    def add(self, variant: str, samples: Array, shards: Array, gap: int) -> None:
        """Add the shards of some samples, each as one stretch, which joins the one before unless that is `gap` samples behind."""
        numbers, first = np.unique(shards, return_index=True)
        last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
        for number, *stretch in np.stack([numbers, samples[first], samples[last]], axis=1).tolist():
            known = self._uses.setdefault(self._store.shards[variant][number], [])
            if known and stretch[0] - known[-1][1] < gap:
                known[-1] = [min(known[-1][0], stretch[0]), max(known[-1][1], stretch[1])]
            else:
                known.append(stretch)

    def check_room(self, at_once: int) -> None:
        """Raise a StoreError if the cache has no room for the shards that are used within so many samples."""
        stretches = [(file.bytes, first, last) for file, known in self._uses.items() for first, last in known]
        changes = [(first - at_once, size) for size, first, _ in stretches] + [(last, -size) for size, _, last in stretches]
        need = max(accumulate(size for _, size in sorted(changes))) + max(file.bytes for file in self._uses)
        if self._store.limit is not None and need > self._store.limit:
            raise StoreError(
                f"cache_size is {self._store.limit}, but the shards that this order reads at once take {need} bytes: give "
                f"cache_size={need} or more, or read fewer batches ahead (num_workers, prefetch_factor)"
            )

    def write(self) -> None:
        """Write the uses that are not over."""
        left = {file: [stretch for stretch in known if stretch[1] >= self.clock[0]] for file, known in self._uses.items()}
        self._uses = {file: known for file, known in left.items() if known}
        write_whole(self._path, json.dumps([*self._uses.items()]).encode())
