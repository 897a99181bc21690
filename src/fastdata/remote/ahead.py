"""Tells the fetcher which shards a Loader will read, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.remote.reader import Mirror
from fastdata.shared_memory import SharedArray
from fastdata.store.uses import Use

__all__ = ["Ahead"]

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1 << 15  # samples that are looked up at once
AT_START = 4  # chunks before the first batch
MORE = 2  # chunks each time that more batches are made
MOST = 1 << 20  # samples ahead

Chunks = Callable[[int, int], tuple[Array, int, int]]


class Ahead:
    """The shards that one rank will read, in the order of its samples.

    Args:
        uses: returns what a dataset reads of remote stores for the samples of an epoch.
        chunk: returns this rank's samples of an epoch from a place on, some ten thousand, and the epoch and the place after them.
    """

    def __init__(self, uses: Callable[[int, Array], Sequence[Use]], chunk: Chunks) -> None:
        self._uses = uses
        self._chunk = chunk
        self._clock = _new_clock()
        self._at = 0, 0
        self._scheduled = 0
        self._drawn = 0
        self._fresh = True
        self._pass: object = None

    def restart(self, epoch: int, start: int) -> None:
        """Begin a new schedule at a place of an epoch; `begin` sends it."""
        self._at = epoch, start
        self._scheduled = self._drawn = 0
        self._fresh = True

    def begin(self, at_once: int) -> None:
        """Send the beginning of a new schedule. at_once: how many samples are read at once, those of all workers.

        Raises:
            StoreError: the cache is too small for this order.
        """
        if self._fresh:
            self._clock.array[:] = 0, 1
            self._extend(AT_START, at_once)

    def draw(self, samples: int, in_flight: int) -> None:
        """Say that a batch of so many samples is handed to the workers, who have yet to read the last `in_flight` ones."""
        if self._scheduled - self._drawn < MOST and self._drawn // CHUNK != (self._drawn + samples) // CHUNK:
            self._extend(MORE, 0)
        self._drawn += samples
        self._clock.array[0] = max(self._drawn - in_flight - samples, 0)

    def during(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a pass. When it ends, or is dropped, nothing more is fetched until the next one."""
        self._clock.array[1] = 1
        this_pass = self._pass = object()
        try:
            yield from batches
        finally:
            if self._pass is this_pass:
                self._clock.array[1] = 0

    def end(self) -> None:
        """End the schedule: the fetcher sees that its clock is gone."""
        self._clock = _new_clock()

    def _extend(self, chunks: int, window: int) -> None:
        for _ in range(chunks):
            ids, *after = self._chunk(*self._at)
            for use in self._uses(after[0], ids) if len(ids) else ():
                if isinstance(use.place, Mirror):
                    self._send(use.place, use, window)
            self._scheduled += len(ids)
            self._at = after[0], after[1]
            self._fresh = False

    def _send(self, mirror: Mirror, use: Use, window: int) -> None:
        shards, first = np.unique(use.shards, return_index=True)
        last = len(use.shards) - 1 - np.unique(use.shards[::-1], return_index=True)[1]
        found = np.stack([shards, self._scheduled + use.samples[first], self._scheduled + use.samples[last]], axis=1)
        creator, descriptor, inode, *_ = self._clock.__getstate__()
        mirror.ask(
            "schedule",
            variant=use.variant,
            uses=found.tolist(),
            most=_most_at_once(use, window) if self._fresh and window else 0,
            clock=[creator, descriptor, inode],
            restart=self._fresh,
        )


def _new_clock() -> SharedArray:
    """Return what the fetcher sees of a Loader: how many samples its workers have read, and whether a pass is under way."""
    return SharedArray(2, np.int64)


def _most_at_once(use: Use, window: int) -> int:
    """Return the most shards that are used within so many samples."""
    edges = np.searchsorted(use.samples, np.arange(0, int(use.samples[-1]) + window, max(window // 2, 1)))
    pairs = zip(edges[:-1].tolist(), [*edges[2:].tolist(), len(use.samples)], strict=True)
    return max(len(np.unique(use.shards[start:stop])) for start, stop in pairs)
