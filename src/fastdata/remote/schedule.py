"""Which shards the readers of a cache will need, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastdata.errors import StoreError
from fastdata.remote.stores import RemoteStore
from fastdata.shared_memory import SharedArray

__all__ = ["Schedules"]

ALIVE_S = 0.1  # for which a reader that was alive is taken to be so
AGAIN_S = 5.0  # until a shard that could not be fetched ahead is tried again
PACE_S = 1.0  # over which a reader's pace is measured
SLOWER = 0.9  # of the pace before, which a reader keeps at least: it may only pause
INF = float("inf")


@dataclass
class _Reader:
    """What one reader will use.

    Attributes:
        clock: how many samples it has read, whether a pass is under way, and how many samples it was given, in shared memory.
        uses: for each shard, the first and the last sample of each stretch in which it is used, in order.
        shards: the shards by their files.
        most: for each store and variant, the bytes that it needs at once.
        pace: samples a second; inf: not known yet.
        seen: the time of the last look at the clock, and how many samples it had been given.
    """

    clock: SharedArray
    uses: dict[Path, list[tuple[int, int]]] = field(default_factory=dict)
    shards: dict[Path, tuple[RemoteStore, str, int]] = field(default_factory=dict)
    most: dict[tuple[Path, str], int] = field(default_factory=dict)
    pace: float = INF
    seen: tuple[float, int] | None = None

    def next_use(self, path: Path, after: float = 0.0) -> float:
        """Return in how many samples a shard is used, by those that are read so many samples from now or later."""
        now = int(self.clock.array[0])
        stretches = self.uses.get(path)
        if not stretches:
            return INF
        while stretches and stretches[0][1] < now:
            stretches.pop(0)
        return next((float(max(first - now, 0)) for first, last in stretches if last >= now + after), INF)

    def seconds(self, use: float) -> float:
        """Return how long it takes the reader to come to a use."""
        now, under_way, given = self.clock.array.tolist()
        if not under_way:
            return INF
        return max(use + now - given, 0.0) / self.pace if self.pace else INF

    def look(self, now: float) -> None:
        """Measure the pace."""
        given = int(self.clock.array[2])
        if not self.clock.array[1] or self.seen is None or given < self.seen[1]:
            self.seen = now, given
        elif now >= self.seen[0] + PACE_S:
            pace = (given - self.seen[1]) / (now - self.seen[0])
            self.pace = pace if self.pace == INF else max(pace, SLOWER * self.pace)
            self.seen = now, given


class Schedules:
    """The schedules of all readers. A time is a number of samples from now."""

    def __init__(self) -> None:
        self._readers: dict[tuple[int, ...], _Reader] = {}
        self._owners: dict[tuple[int, ...], int] = {}
        self._failed: dict[Path, float] = {}
        self._looked = 0.0  # when it was last looked at which readers are alive
        self._lock = threading.Lock()

    def extend(
        self, owner: int, clock: Sequence[int], store: RemoteStore, variant: str, uses: Sequence[Sequence[int]], *, restart: bool
    ) -> None:
        """Add to the schedule of a Loader.

        Args:
            owner: the number of its connection.
            clock: its process, and the descriptor and inode of its count of samples.
            store, variant: what it reads.
            uses: (shard, first, last): a shard is used from one sample to another, counted from the beginning of the schedule.
            restart: forget what was scheduled before of this variant.
        """
        name = tuple(clock)
        with self._lock:
            if name not in self._readers:
                shared = SharedArray.__new__(SharedArray)
                shared.__setstate__((*clock, np.dtype(np.int64), (3,)))
                self._readers[name] = _Reader(shared)
            self._owners[name] = owner
            found = self._readers[name]
            if restart:
                for path in [path for path, (of, its, _) in found.shards.items() if (of.root, its) == (store.root, variant)]:
                    del found.shards[path], found.uses[path]
            for shard, first, last in uses:
                path = store.file(variant, shard)
                found.uses.setdefault(path, []).append((first, last))
                found.shards[path] = store, variant, shard

    def check_room(self, clock: Sequence[int], store: RemoteStore, variant: str, most: int, limit: int | None) -> None:
        """Check that a cache has room for the shards that all readers need at once.

        Args:
            clock, store, variant: of the reader.
            most: how many shards it needs at once.
            limit: the bytes of the cache.

        Raises:
            StoreError: it has not.
        """
        if not most:
            return
        sizes = [store.file_bytes(variant, shard) for shard in range(len(store.variants[variant].shards))]
        with self._lock:
            self._readers[tuple(clock)].most[store.root, variant] = sum(sorted(sizes)[-most - 1 :])
            together: dict[tuple[Path, str], int] = {}
            for reader in self._alive():
                for what, need in reader.most.items():
                    together[what] = max(together.get(what, 0), need)
        need = sum(together.values())
        if limit is not None and need > limit:
            raise StoreError(
                f"cache_size is {limit}, but the shards that this order reads at once take {need} bytes: give cache_size={need} or "
                "more, or read fewer batches ahead (num_workers, prefetch_factor)"
            )

    def _alive(self) -> list[_Reader]:
        """Return the readers whose Loaders exist."""
        now = time.monotonic()
        if now >= self._looked + ALIVE_S:
            self._looked = now
            for name in [name for name in self._readers if not _exists(*name)]:
                self._owners.pop(name, None)
                del self._readers[name]
            for reader in self._readers.values():
                reader.look(now)
        return list(self._readers.values())

    def drop(self, owner: int) -> None:
        """Forget the schedules of a connection that has ended."""
        with self._lock:
            for name in [name for name, of in self._owners.items() if of == owner]:
                del self._owners[name], self._readers[name]

    def failed(self, path: Path) -> None:
        """Leave a shard alone for a while, which could not be fetched ahead."""
        with self._lock:
            self._failed[path] = time.monotonic() + AGAIN_S

    def next_use(self, path: Path, after: float = 0.0) -> float:
        """Return when a shard is used next by any reader, `after` or later; inf: no schedule has it."""
        with self._lock:
            return min((reader.next_use(path, after) for reader in self._alive()), default=INF)

    def wants(self, path: Path) -> bool:
        """Return whether a pass under way will use a shard."""
        with self._lock:
            return any(reader.clock.array[1] and reader.next_use(path) != INF for reader in self._alive())

    def coming(self) -> Iterator[tuple[tuple[RemoteStore, str, int], float]]:
        """Yield all shards that are scheduled for passes under way, the next ones first, and the seconds until each is used."""
        with self._lock:
            now = time.monotonic()
            found = []
            for reader in self._alive():
                for path, shard in reader.shards.items() if reader.clock.array[1] else ():
                    use = reader.next_use(path)
                    if use != INF and self._failed.get(path, 0.0) <= now:
                        found.append((use, shard, reader.seconds(use)))
        for _, shard, seconds in sorted(found, key=lambda each: each[0]):
            yield shard, seconds


def _exists(process: int, descriptor: int, inode: int) -> bool:
    """Return whether a process has this shared memory open."""
    try:
        return Path(f"/proc/{process}/fd/{descriptor}").stat().st_ino == inode
    except OSError:
        return False
