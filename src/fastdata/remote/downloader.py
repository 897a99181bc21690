"""The process that downloads for all readers of a cache on this machine. It alone uses object storage. `cache.py` says how.

One thread watches the files of readers, and downloads what schedules say is used next. A thread for each file that a reader waits
for brings it at once. The process begins with the first reader, and ends with the last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import threading
import time
import traceback
from bisect import bisect_left
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import FastDataError, RemoteError, StoreError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import CLOCK, ERROR, READER, REQUEST, SCHEDULE, RemoteFile, ShardCache, map_number, write_whole

RANGES = 16  # requests in flight
WAITS = 256  # threads for files that readers wait for,
WANTED_AT_ONCE = 8  # of which so many download
AHEAD_AT_ONCE = 4  # files that schedules have next
WATCH_S = 0.005  # between two looks at the folder
LIVES_S = 0.25  # between two looks whether readers live
GRACE_S = 2.0  # without readers
FIRST_S = 30.0  # for the first reader to come
WAIT_S = 30.0  # for room in the cache, while a reader waits
ROOM_S = 0.02, 0.1  # between two looks for room: for a file that a reader waits for, and for others
LOOK_S = 0.5  # between two looks at the schedules
INF = float("inf")


class Reader(NamedTuple):
    """A store that a process reads, as its file says: see `Session`. descriptor: of the file, which the process locks."""

    descriptor: int
    process: str
    opened: int
    url: str
    storage: dict[str, Any]
    limit: int | None


class ReadSchedule(NamedTuple):
    """What one Loader will read of one store.

    stamp: of the file that says so, the inode and the time.
    clock: how many samples were read.
    uses: for each file in the cache, its bucket, and the first and the last samples of the stretches in which it is used, in order.
    """

    stamp: tuple[int, int]
    clock: memoryview
    uses: dict[Path, tuple[Bucket, RemoteFile, list[int], list[int]]]

    def next_use(self, path: Path) -> float:
        """Return in how many samples a file is used; inf: never."""
        if path not in self.uses:
            return INF
        (_, _, firsts, lasts), now = self.uses[path], self.clock[0]
        k = bisect_left(lasts, now)
        return float(max(firsts[k] - now, 0)) if k < len(firsts) else INF


def fill(cache: ShardCache, bucket: Bucket, file: RemoteFile, descriptor: int, pool: Executor) -> None:
    """Fetch a file into what `ShardCache.begin` has opened."""
    cache.fill(file, descriptor, lambda opened: bucket.fetch(file.name, file.bytes, file.xxh3_128, opened, pool))


class Downloader:
    """Downloads for the readers of a cache, whose files are in a folder."""

    def __init__(self, cache: ShardCache, folder: Path) -> None:
        self._cache, self._folder = cache, folder
        self._ranges, self._waits, self._ahead = (ThreadPoolExecutor(count) for count in (RANGES, WAITS, AHEAD_AT_ONCE))
        self._wanted = threading.Semaphore(WANTED_AT_ONCE)
        self._readers: dict[str, Reader] = {}
        self._asked = set[str]()  # requests that are known
        self._buckets: dict[str, Bucket] = {}
        self._schedules: dict[str, ReadSchedule] = {}  # by file; never changed, since threads read it, but replaced
        self._coming: list[tuple[float, Path, Bucket, RemoteFile]] = []  # what the schedules have next, in reverse
        self._fetching: list[Future[None]] = []
        self._look = self._full = self._lives = 0.0  # when schedules, room for what they have, and readers are looked at again

    def run(self) -> None:
        """Work until no reader is left."""
        last = time.monotonic() + FIRST_S - GRACE_S
        while (now := time.monotonic()) < last + GRACE_S:
            self._watch()
            if now >= self._lives:
                self._lives = now + LIVES_S
                self._drop_readers()
            if self._readers:
                last = now
            self._fetch_ahead(now)
            time.sleep(WATCH_S)

    # What readers say

    def _watch(self) -> None:
        """Look for files that are new."""
        entries = {entry.name: entry for entry in os.scandir(self._folder)}
        for name in entries:
            if name.endswith(READER) and name.removesuffix(READER) not in self._readers:
                with suppress(OSError, ValueError):
                    self._add_reader(name)
        self._asked &= entries.keys()
        for name in entries:
            if name.endswith(REQUEST) and name not in self._asked:
                with suppress(FileNotFoundError, KeyError):  # it does not wait any more, or has ended
                    self._take(name)
        self._schedules = {name: known for name, known in self._schedules.items() if name in entries}
        for name, entry in entries.items():
            if name.endswith(SCHEDULE):
                with suppress(OSError, ValueError, KeyError, FastDataError):  # its reader has ended
                    info = entry.stat()
                    stamp = info.st_ino, info.st_mtime_ns
                    if name not in self._schedules or self._schedules[name].stamp != stamp:
                        self._load_schedule(self._folder / name, stamp)

    def _add_reader(self, name: str) -> None:
        descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            body = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
            self._readers[name.removesuffix(READER)] = Reader(descriptor, **body)
        except BaseException:
            os.close(descriptor)
            raise
        self._set_limit()

    def _drop_readers(self) -> None:
        """Remove the files of readers that have ended."""
        for name, reader in list(self._readers.items()):
            try:
                fcntl.flock(reader.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.close(reader.descriptor)
            del self._readers[name]
            for path in self._folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)
            self._set_limit()

    def _set_limit(self) -> None:
        """Let the cache take what all readers allow: of a store that a process has opened again, the last."""
        last = {(one.process, one.url): one.limit for one in sorted(self._readers.values(), key=lambda one: one.opened)}
        self._cache.limit = min((limit for limit in last.values() if limit is not None), default=None)

    def _bucket(self, reader: Reader) -> Bucket:
        name = json.dumps([reader.url, reader.storage])
        if name not in self._buckets:
            self._buckets[name] = Bucket(reader.url, reader.storage)
        return self._buckets[name]

    def _take(self, name: str) -> None:
        """Begin what a reader asks for."""
        reader, request = self._readers[name.partition(".")[0]], self._folder / name
        for file in json.loads(request.read_bytes()):
            self._waits.submit(self._bring, request, reader, RemoteFile(*file))
        self._asked.add(name)

    def _load_schedule(self, path: Path, stamp: tuple[int, int]) -> None:
        bucket, uses = self._bucket(self._readers[path.name.partition(".")[0]]), {}
        for file, firsts, lasts in json.loads(path.read_bytes()):
            known = RemoteFile(*file)
            uses[self._cache.folder / known.path] = bucket, known, firsts, lasts
        self._schedules = {**self._schedules, path.name: ReadSchedule(stamp, map_number(path.with_suffix(CLOCK), 0), uses)}
        self._look = 0.0

    def _next_use(self, path: Path) -> float:
        """Return in how many samples a file is used by any Loader; inf: no schedule has it."""
        return min((schedule.next_use(path) for schedule in self._schedules.values()), default=INF)

    # Files that readers wait for, each in a thread

    def _bring(self, request: Path, reader: Reader, file: RemoteFile) -> None:
        """Download a file, and again if it is evicted, for as long as a reader waits."""
        path, end = self._cache.folder / file.path, time.monotonic() + WAIT_S
        try:
            while request.exists():
                pause = WATCH_S
                if not path.exists() and not self._download(self._bucket(reader), file):
                    now, pause = time.monotonic(), ROOM_S[0]
                    self._full = now + ROOM_S[1]
                    if now >= end:
                        raise self._cache.full(file.bytes)
                time.sleep(pause)
        except Exception as error:  # noqa: BLE001  the reader waits, whatever happens
            self._report(request, error)

    def _download(self, bucket: Bucket, file: RemoteFile) -> bool:
        """Download a file, unless another thread or process does; return whether there is room for it."""
        if not file.xxh3_128:  # a manifest
            write_whole(self._cache.folder / file.path, bucket.read_twice(file.name))
            return True
        with self._wanted:
            try:
                descriptor = self._cache.begin(file, self._next_use)
            except (BlockingIOError, FileExistsError):
                return True
            if descriptor is not None:
                fill(self._cache, bucket, file, descriptor, self._ranges)
            return descriptor is not None

    def _report(self, request: Path, error: Exception) -> None:
        """Tell a reader why it waits in vain."""
        if isinstance(error, OSError):
            why = "the disk is full" if error.errno == errno.ENOSPC else lacking(error) or error
            error = StoreError(f"the cache {self._cache.folder}: {why}")
        elif not isinstance(error, FastDataError):
            error = RemoteError(f"the downloader failed: {type(error).__name__}: {error}")
        missing = error.missing if isinstance(error, RemoteError) else None
        answer = request.with_suffix(ERROR)
        write_whole(answer, json.dumps({"message": str(error), "missing": missing}).encode())
        if not request.exists():  # the reader has ended meanwhile
            answer.unlink(missing_ok=True)

    # Files that Loaders will read

    def _fetch_ahead(self, now: float) -> None:
        """Begin to download what Loaders will read next, unless it would take the room of what readers wait for."""
        self._fetching = [one for one in self._fetching if not one.done()]
        if now >= self._look:
            self._coming, self._look = self._uses(), now + LOOK_S
        while self._coming and len(self._fetching) < AHEAD_AT_ONCE and now >= self._full:
            _, path, bucket, file = self._coming[-1]
            use = self._next_use(path)
            try:
                descriptor = self._cache.begin(file, self._next_use, use) if use != INF else -1
            except (BlockingIOError, FileExistsError):
                descriptor = -1
            except (FastDataError, OSError):
                descriptor = None
            if descriptor is None:
                self._full = now + ROOM_S[1]
                return
            if descriptor >= 0:
                self._fetching.append(self._ahead.submit(fill, self._cache, bucket, file, descriptor, self._ranges))
            self._coming.pop()

    def _uses(self) -> list[tuple[float, Path, Bucket, RemoteFile]]:
        """Return what schedules have and the cache lacks, the next last."""
        found: dict[Path, tuple[float, Path, Bucket, RemoteFile]] = {}
        for schedule in self._schedules.values():
            for path, (bucket, file, _, _) in schedule.uses.items():
                use = schedule.next_use(path)
                if use != INF and (path not in found or use < found[path][0]):
                    found[path] = use, path, bucket, file
        return sorted((use for path, use in found.items() if not path.exists()), key=lambda use: use[0], reverse=True)


def main(cache: str, folder: str) -> None:
    """Work for the readers of a cache, whose folder in it has this name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shards = ShardCache(Path(cache))
        shards.sweep()
        Downloader(shards, Path(cache) / "readers" / folder).run()
    except FileNotFoundError:
        pass  # somebody has deleted the cache
    except Exception:  # noqa: BLE001  the log has it
        traceback.print_exc()
    finally:
        os._exit(0)  # threads that wait for a server need not be waited for
