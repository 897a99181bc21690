"""Which shards the readers of a cache will need, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.remote.stores import RemoteStore

__all__ = ["Schedules"]

AGAIN_S = 5.0  # until a shard that could not be fetched ahead is tried again


@dataclass
class _Reader:
    """What one reader will use.

    Attributes:
        now: how many samples it has read.
        uses: for each shard, the first and the last sample of each stretch in which it is used, in order.
    """

    now: int = 0
    uses: dict[Path, list[tuple[int, int]]] = field(default_factory=dict)
    shards: dict[Path, tuple[RemoteStore, str, int]] = field(default_factory=dict)

    def next_use(self, path: Path) -> float:
        stretches = self.uses.get(path)
        while stretches and stretches[0][1] < self.now:
            stretches.pop(0)
        return float(max(stretches[0][0] - self.now, 0)) if stretches else float("inf")


class Schedules:
    """The schedules of all readers. A time is a number of samples from now."""

    def __init__(self) -> None:
        self._readers: dict[int, _Reader] = {}
        self._failed: dict[Path, float] = {}
        self._lock = threading.Lock()

    def extend(
        self, reader: int, store: RemoteStore, variants: Sequence[str], uses: Sequence[tuple[int, int, int]], *, restart: bool
    ) -> None:
        """Add to a reader's schedule.

        Args:
            reader: its number.
            store: what it reads.
            variants: the variants that it reads of each sample.
            uses: (shard, first, last): a shard is used from one sample to another, counted from the beginning of the schedule.
            restart: forget what was scheduled before.
        """
        with self._lock:
            found = self._readers.setdefault(reader, _Reader())
            if restart:
                found = self._readers[reader] = _Reader()
            for shard, first, last in uses:
                for variant in variants:
                    path = store.file(variant, shard)
                    found.uses.setdefault(path, []).append((first, last))
                    found.shards[path] = store, variant, shard

    def advance(self, reader: int, now: int) -> None:
        """Say how many samples a reader has read since its schedule began."""
        with self._lock:
            if reader in self._readers:
                self._readers[reader].now = now

    def drop(self, reader: int) -> None:
        with self._lock:
            self._readers.pop(reader, None)

    def failed(self, path: Path) -> None:
        """Leave a shard alone for a while, which could not be fetched ahead."""
        with self._lock:
            self._failed[path] = time.monotonic() + AGAIN_S

    def next_use(self, path: Path) -> float:
        """Return when a shard is used next by any reader; inf: no schedule has it."""
        with self._lock:
            return min((reader.next_use(path) for reader in self._readers.values()), default=float("inf"))

    def coming(self) -> Iterator[tuple[RemoteStore, str, int]]:
        """Yield all shards that are scheduled, the next ones first."""
        with self._lock:
            now = time.monotonic()
            found = []
            for reader in self._readers.values():
                for path, shard in reader.shards.items():
                    use = reader.next_use(path)
                    if use != float("inf") and self._failed.get(path, 0.0) <= now:
                        found.append((use, shard))
        for _, shard in sorted(found, key=lambda each: each[0]):
            yield shard
