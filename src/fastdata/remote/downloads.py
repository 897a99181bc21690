"""The shards that are being fetched: what readers wait for first, then what they will need."""

from __future__ import annotations

import errno
import os
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import StoreError, lacking
from fastdata.remote.cache import Cache, CacheFullError
from fastdata.remote.schedule import Schedules
from fastdata.remote.stores import RemoteStore

__all__ = ["Downloads", "Key", "Memory"]

WAIT_S = 30.0  # for room in the cache, while a reader waits
AHEAD_WAIT_S = 0.1  # for room, while none does
TRIES = 5  # to write to a disk that is full: each makes the cache smaller
PAUSE_S = 0.1  # until shards are fetched ahead again, if there was no room
IDLE_S = 0.1  # between two looks at the schedules that find nothing to fetch
AT_ONCE = 64  # shards that a look at the schedules finds at most
STALE_S = 1.0  # after which they are looked for again
EARLY = 3.0  # times as early as a shard has to be fetched, it may take the place of one that is needed again
EARLY_S = 0.5  # and by so much
TIMED = 16  # shards of which the time that one takes is the mean


class Key(NamedTuple):
    """A shard of a store; in_memory: it is not written to the cache."""

    store: RemoteStore
    variant: str
    shard: int
    in_memory: bool

    @property
    def name(self) -> tuple[Path, bool]:
        return self.store.file(self.variant, self.shard), self.in_memory


class Memory:
    """A shard in an anonymous file, which is gone with its last user."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("fastdata-shard", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)

    def __del__(self) -> None:
        os.close(self.descriptor)


class Downloads:
    """Threads that fetch shards into a cache.

    Args:
        cache: where to.
        schedules: what readers will need.
        pool: threads for requests.
        threads: shards that are fetched at once.
    """

    def __init__(self, cache: Cache, schedules: Schedules, pool: Executor, threads: int) -> None:
        self._cache = cache
        self._schedules = schedules
        self._pool = pool
        self._change = threading.Condition()
        self._asked: dict[tuple[Path, bool], tuple[Key, Future[Memory | None]]] = {}  # in the order of asking
        self._fetching: dict[tuple[Path, bool], tuple[Future[Memory | None], bool]] = {}  # and whether it is ahead of need
        self._coming = deque[Key]()  # what the schedules have next
        self._look = 0.0  # when they are looked at again
        self._resume = 0.0  # when shards are fetched ahead again
        self._is_late = True  # whether a reader may have to wait, unless shards are fetched before others are done with
        self._took = deque[float]([1.0], maxlen=TIMED)  # seconds of a shard, divided by those on their way
        for _ in range(threads):
            threading.Thread(target=self._run, daemon=True).start()

    def take(self, key: Key) -> Memory | None:
        """Wait until a shard is in the cache, or return it in memory.

        Raises:
            FastDataError: it cannot be fetched, or there is no room.
        """
        while True:
            future, ahead = self._want(key)
            try:
                return future.result()
            except CacheFullError:
                if not ahead:  # what is fetched ahead does not wait for room
                    raise

    def _want(self, key: Key) -> tuple[Future[Memory | None], bool]:
        """Fetch a shard before those that are only scheduled. Return whether it is being fetched ahead already."""
        with self._change:
            if key.name in self._fetching:
                return self._fetching[key.name]
            if not key.in_memory and key.name[0].exists():
                done = Future[Memory | None]()
                done.set_result(None)
                return done, False
            _, future = self._asked.setdefault(key.name, (key, Future()))
            self._change.notify()
            return future, False

    def wake(self) -> None:
        """Look at the schedules again."""
        with self._change:
            self._coming.clear()
            self._look = 0.0
            self._change.notify()

    def _run(self) -> None:
        while True:
            key, future, asked = self._next()
            began = time.monotonic()
            try:
                if key.in_memory:
                    future.set_result(self._memory(key))
                else:
                    self._file(key, asked)
                    future.set_result(None)
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                future.set_exception(error)
                if isinstance(error, CacheFullError):
                    self._resume = time.monotonic() + PAUSE_S  # later shards would take the room that this one needs
                    self._look = 0.0
                elif not asked:
                    self._schedules.failed(key.name[0])
            finally:
                with self._change:
                    if future.exception() is None:
                        self._took.append((time.monotonic() - began) / len(self._fetching))
                    del self._fetching[key.name]
                    self._change.notify()
                del future, key  # memory goes with its last user

    def _next(self) -> tuple[Key, Future[Memory | None], bool]:
        """Return what to fetch, and whether somebody waits for it."""
        with self._change:
            while True:
                found = self._asked_next() or self._scheduled_next()
                if found is not None:
                    self._fetching[found[0].name] = found[1], not found[2]
                    return found
                self._change.wait(IDLE_S)

    def _asked_next(self) -> tuple[Key, Future[Memory | None], bool] | None:
        if not self._asked:
            return None
        name = next(iter(self._asked))
        return *self._asked.pop(name), True

    def _scheduled_next(self) -> tuple[Key, Future[Memory | None], bool] | None:
        now = time.monotonic()
        if now < self._resume:
            return None
        if now >= self._look:
            coming = ((Key(*shard, False), seconds) for shard, seconds in self._schedules.coming())
            found = list(islice((each for each in coming if self._missing(each[0])), AT_ONCE))
            needed = (k * statistics.mean(self._took) * EARLY + EARLY_S for k in range(1, len(found) + 1))
            self._is_late = any(seconds < need for (_, seconds), need in zip(found, needed, strict=True))
            self._coming = deque(key for key, _ in found)
            self._look = now + (STALE_S if self._coming else IDLE_S)
        while self._coming:
            key = self._coming.popleft()
            if not self._coming:
                self._look = 0.0
            if self._missing(key) and self._schedules.wants(key.name[0]):
                return key, Future(), False
        return None

    def _missing(self, key: Key) -> bool:
        return key.name not in self._fetching and not key.name[0].exists()

    def _memory(self, key: Key) -> Memory:
        memory = Memory(key.store.file_bytes(key.variant, key.shard))
        key.store.fill(key.variant, key.shard, memory.descriptor, self._pool)
        return memory

    def _file(self, key: Key, asked: bool) -> None:
        path, _ = key.name
        size = key.store.file_bytes(key.variant, key.shard)
        own = self._schedules.next_use(path)
        next_use, spared, wait_s = self._schedules.next_use, None, WAIT_S
        if not asked:
            spared, wait_s = (lambda other: self._schedules.next_use(other) <= own), AHEAD_WAIT_S
            if not self._is_late:  # a shard that is in use, and will be done with by then, may be the better one to evict
                next_use = partial(self._schedules.next_use, after=own)
        for attempt in range(TRIES):
            try:
                with self._cache.reserved(path, size, next_use, spared, wait_s) as descriptor:
                    if descriptor is not None:
                        key.store.fill(key.variant, key.shard, descriptor, self._pool)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC or attempt == TRIES - 1:
                    raise StoreError(
                        f"{key.store.bucket.url}: shard {key.shard} of {key.variant} cannot be written to the cache "
                        f"{self._cache.folder}: {lacking(error) or error.strerror}"
                    ) from None
                self._cache.shrink()
