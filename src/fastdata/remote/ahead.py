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

AT_START = 1 << 16  # samples that are scheduled before the first batch
MORE = 1 << 16  # samples each time that more batches are made
MOST = 1 << 20  # samples ahead
GAPS = 4  # at most, between the uses of a shard by one chunk
CHUNKS = 3  # enough for the end of an epoch, its last batch and the beginning of the next

Chunks = Callable[[int, int], tuple[Array, int, int]]


class Ahead:
    """The shards that one rank will read, in the order of its samples.

    Args:
        uses: returns what a dataset reads of remote stores for the samples of an epoch.
        chunk: returns this rank's samples of an epoch from a place on, some ten thousand, and the epoch and the place after them;
            no samples: they are not known yet.
    """

    def __init__(self, uses: Callable[[int, Array], Sequence[Use]], chunk: Chunks) -> None:
        self._uses = uses
        self._chunk = chunk
        self._clock = _new_clock()
        self._at = 0, 0
        self._scheduled = 0
        self._drawn = 0
        self._at_once = 0
        self._fresh = True
        self._pass: object = None

    def restart(self, epoch: int, start: int) -> None:
        """Begin a new schedule at a place of an epoch; `extend` sends it."""
        self._at = epoch, start
        self._scheduled = self._drawn = 0
        self._fresh = True

    def extend(self, epoch: int, at_once: int, end: int) -> None:
        """Send more of the schedule, or the beginning of a new one: a million samples, or what is left of this epoch and the next.

        Args:
            epoch: of the samples that are drawn next.
            at_once: how many samples are read at once, those of all workers.
            end: a place some ten thousand samples before the end of the epoch, where more shards may be read at once.

        Raises:
            StoreError: the cache is too small for this order.
        """
        self._at_once = at_once
        most: dict[tuple[Mirror, str], int] = {}
        if self._fresh:
            self._clock.array[:] = 0, 1, 0
            start = self._at[1]
            for place in (start, max(start, end)):
                for each, need in self._most_at_once(epoch, place).items():
                    most[each] = max(most.get(each, 0), need)
        until = min(self._scheduled + (AT_START if self._fresh else MORE), self._drawn + MOST)
        while self._scheduled < until and self._at[0] <= epoch + 1:
            ids, *after = self._chunk(*self._at)
            if not len(ids):
                break
            for (mirror, variant), (samples, shards) in self._by_store(after[0], ids).items():
                found = _stretches(samples + self._scheduled, shards, len(ids) // GAPS)
                self._send(mirror, variant, found, most.pop((mirror, variant), 0))
            self._scheduled += len(ids)
            self._at = after[0], after[1]
            self._fresh = False

    def draw(self, samples: int) -> None:
        """Say that a batch of so many samples is handed to the workers."""
        self._drawn += samples
        self._clock.array[0] = max(self._drawn - self._at_once, 0)
        self._clock.array[2] = self._drawn

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

    def _by_store(self, epoch: int, ids: Array) -> dict[tuple[Mirror, str], tuple[Array, Array]]:
        """Return the samples that lie in each variant of a remote store, in order, and the shard of each."""
        found: dict[tuple[Mirror, str], tuple[Array, Array]] = {}
        for use in self._uses(epoch, ids):
            if isinstance(use.place, Mirror):
                samples, shards = found.get((use.place, use.variant), (use.samples[:0], use.shards[:0]))
                samples, shards = np.append(samples, use.samples), np.append(shards, use.shards)
                order = np.argsort(samples, kind="stable")
                found[use.place, use.variant] = samples[order], shards[order]
        return found

    def _most_at_once(self, epoch: int, start: int) -> dict[tuple[Mirror, str], int]:
        """Return the most shards of each store and variant that are used within `at_once` samples, some chunks long."""
        parts: dict[tuple[Mirror, str], list[Array]] = {}
        count = 0
        for _ in range(CHUNKS):
            ids, epoch, start = self._chunk(epoch, start)
            for each, (samples, shards) in self._by_store(epoch, ids).items() if len(ids) else ():
                parts.setdefault(each, []).append(np.stack([samples + count, shards]))
            count += len(ids)
        return {each: _most_within(np.concatenate(found, axis=1), self._at_once) for each, found in parts.items()}

    def _send(self, mirror: Mirror, variant: str, uses: Array, most: int) -> None:
        creator, descriptor, inode, *_ = self._clock.__getstate__()
        mirror.ask(
            "schedule",
            variant=variant,
            uses=uses.tolist(),
            most=most,
            clock=[creator, descriptor, inode],
            restart=self._fresh,
        )


def _new_clock() -> SharedArray:
    """Return what the fetcher sees of a Loader: how many samples its workers have read, whether a pass is under way, and how many
    samples the workers have been given."""
    return SharedArray(3, np.int64)


def _stretches(samples: Array, shards: Array, gap: int) -> Array:
    """Return when shards are used: (shard, first sample, last sample), int64 [n, 3]. Uses up to `gap` samples apart are one."""
    order = np.argsort(shards, kind="stable")
    shards, samples = shards[order], samples[order]
    begins = np.flatnonzero(np.append(True, (shards[1:] != shards[:-1]) | (samples[1:] - samples[:-1] > gap)))
    ends = np.append(begins[1:], len(shards)) - 1
    return np.stack([shards[begins], samples[begins], samples[ends]], axis=1)


def _most_within(uses: Array, window: int) -> int:
    """Return the most shards that are used within so many samples. `uses` are samples and their shards, int64 [2, n]."""
    samples, shards = uses
    _, first, last = _stretches(samples, shards, window).T
    begins, ends = np.sort(first - window + 1), np.sort(last)  # of the windows that have a shard
    return int((np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, "left")).max())
