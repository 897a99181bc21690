"""The process that downloads for all readers of a cache on this machine. It alone uses object storage. `client.py` says how.

One thread watches the files of readers, and decides; others wait for servers and disks. What a reader waits for is fetched first,
then what schedules say is used next. It begins with the first reader, and ends with the last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
import traceback
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import FastDataError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import ShardCache, shard_path
from fastdata.remote.client import ANSWER, READER, REQUEST, SCHEDULE
from fastdata.remote.prefetch import INF, Schedule, Schedules
from fastdata.remote.store import Origin, copy_tables, fetch
from fastdata.store.files import FileSum, shard_file, write_atomic
from fastdata.store.reader import raise_file_limit

__all__ = ["Shard", "fill", "main"]

REQUESTS = 16  # in flight
SHARDS_AT_ONCE = 4
WATCH_S = 0.005  # between two looks at the folder
LIVES_S = 0.25  # between two looks whether readers live
GRACE_S = 2.0  # without readers
FIRST_S = 30.0  # for the first reader to come
LEFT_S = 60.0  # after which a file of no reader is not that of one that begins
WAIT_S = 30.0  # for room in the cache, while a reader waits
ROOM_S = 0.02, 0.1  # between two looks for room: for a shard that a reader waits for, and for others
LOOK_S = 0.3, 1.0  # between two looks at the schedules that find nothing, and that find shards
COMING = 64  # shards that a look at the schedules finds at most
AGAIN_S = 5.0  # until a shard that could not be fetched ahead is tried again


@dataclass
class Reader:
    """A store that a process reads, as its file says.

    Attributes: as in `Session`, but for the descriptor of the file, which the process locks.
    """

    descriptor: int
    process: str
    opened: int
    url: str
    storage: dict[str, Any]
    limit: int | None


class Shard(NamedTuple):
    """A shard of a store."""

    origin: Origin
    variant: str
    number: int

    @property
    def total(self) -> FileSum:
        """Its size and checksum."""
        return self.origin.variants[self.variant].shards[self.number]

    @property
    def path(self) -> Path:
        """Where it lies in the cache."""
        return shard_path(self.origin.root, self.variant, self.number, self.total.xxh3_128)


@dataclass
class Download:
    """A shard that readers wait for."""

    shard: Shard
    answers: set[Path] = field(default_factory=set)  # the files of those who wait
    since: float = field(default_factory=time.monotonic)
    look: float = 0.0  # when room for it is looked for again


def fill(cache: ShardCache, shard: Shard, descriptor: int, pool: Executor) -> None:
    """Fetch a shard into the file that `ShardCache.begin` has opened, check it, flush it, and give it its name."""
    xxh3 = None
    try:
        fetch(shard.origin.bucket, shard_file(shard.variant, shard.number), shard.total, descriptor, pool)
        xxh3 = shard.total.xxh3_128
    finally:
        cache.finish(descriptor, shard.path, xxh3)


class Downloader:
    """Downloads for the readers of a cache, whose files are in a folder."""

    def __init__(self, cache: ShardCache, folder: Path) -> None:
        self._cache = cache
        self._folder = folder
        self._pool = ThreadPoolExecutor(REQUESTS)
        self._threads = ThreadPoolExecutor(SHARDS_AT_ONCE)
        self._opens, self._copies = ThreadPoolExecutor(SHARDS_AT_ONCE), ThreadPoolExecutor(REQUESTS)
        self._readers: dict[str, Reader] = {}
        self._asked = set[str]()  # requests that are known
        self._schedule_files: dict[str, tuple[int, int]] = {}
        self._schedules = Schedules()
        self._buckets: dict[str, Bucket] = {}
        self._origins: dict[str, Origin] = {}
        self._tables: dict[Future[Path], Path] = {}  # and the answer
        self._wanted: dict[Path, Download] = {}  # in the order of asking
        self._running: dict[Path, Future[None]] = {}
        self._coming = deque[tuple[Path, Shard]]()  # what the schedules have next
        self._failed: dict[Path, float] = {}  # until when shards are left alone
        self._look = 0.0  # when the schedules are looked at again
        self._lives = 0.0

    def run(self) -> None:
        """Work until no reader is left, or a signal comes."""
        ends = list[int]()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: ends.append(number))
        last = time.monotonic() + FIRST_S - GRACE_S
        try:
            while not ends and (now := time.monotonic()) < last + GRACE_S:
                self._watch()
                if now >= self._lives:
                    self._lives = now + LIVES_S
                    self._drop_readers()
                if self._readers:
                    last = now
                self._finish()
                self._begin(now)
                time.sleep(WATCH_S)
        finally:
            for path in self._running:
                path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what killed readers and downloaders have left."""
        self._cache.sweep()
        for path in self._folder.iterdir():
            name, dot, _ = path.name.partition(".")
            with suppress(FileNotFoundError):
                if dot and not (self._folder / f"{name}{READER}").exists() and path.stat().st_mtime < time.time() - LEFT_S:
                    path.unlink()

    def _watch(self) -> None:
        """Look for files that are new."""
        entries = {entry.name: entry for entry in os.scandir(self._folder)}
        for name in entries:
            if name.endswith(READER) and name.removesuffix(READER) not in self._readers:
                with suppress(OSError, ValueError):
                    self._add_reader(name)
        for name in entries:
            if name.endswith(REQUEST) and name not in self._asked:
                self._take(name)
        self._asked &= entries.keys()
        for name, entry in entries.items():
            if name.endswith(SCHEDULE):
                with suppress(OSError, ValueError, KeyError, FastDataError):  # its reader has ended, or its tables were removed
                    info = entry.stat()
                    if self._schedule_files.get(name) != (info.st_ino, info.st_mtime_ns):
                        self._load_schedule(name)
                        self._schedule_files[name] = info.st_ino, info.st_mtime_ns
        for name in self._schedules.keys() - entries.keys():
            del self._schedules[name], self._schedule_files[name]

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

    def _origin(self, reader: Reader, root: str) -> Origin:
        """Return a store that a reader has opened, perhaps through a downloader before this one."""
        name = json.dumps([reader.url, reader.storage, root])
        if name not in self._origins:
            self._origins[name] = Origin(self._bucket(reader), self._cache.folder / root)
        return self._origins[name]

    def _bucket(self, reader: Reader) -> Bucket:
        name = json.dumps([reader.url, reader.storage])
        if name not in self._buckets:
            self._buckets[name] = Bucket(reader.url, reader.storage)
        return self._buckets[name]

    def _take(self, name: str) -> None:
        """Take a reader's request."""
        reader, answer = self._readers.get(name.partition(".")[0]), (self._folder / name).with_suffix(ANSWER)
        try:
            body = json.loads((self._folder / name).read_bytes())
        except FileNotFoundError:
            return  # it does not wait any more
        if reader is None:
            return  # it has ended
        self._asked.add(name)
        try:
            if "shard" not in body:
                self._tables[self._opens.submit(self._copy_tables, reader)] = answer
                return
            shard = Shard(self._origin(reader, body["root"]), body["variant"], body["shard"])
            self._wanted.setdefault(shard.path, Download(shard)).answers.add(answer)
        except Exception as error:  # noqa: BLE001  the reader waits for an answer, whatever happens
            self._answer(answer, self._described(error))

    def _copy_tables(self, reader: Reader) -> Path:
        return copy_tables(self._bucket(reader), self._cache.folder, self._pool, self._copies)

    def _load_schedule(self, name: str) -> None:
        body = json.loads((self._folder / name).read_bytes())
        origin = self._origin(self._readers[name.partition(".")[0]], body["root"])
        shards: dict[Path, tuple[Shard, list[tuple[int, int]]]] = {}
        for variant, uses in body["uses"].items():
            for number, first, last in uses:
                shard = Shard(origin, variant, number)
                shards.setdefault(shard.path, (shard, []))[1].append((first, last))
        self._schedules[name] = Schedule(self._folder / body["clock"], shards)
        self._look = 0.0

    def _answer(self, answer: Path, body: dict[str, Any]) -> None:
        """Answer a request, if its reader still waits."""
        if answer.with_suffix(REQUEST).exists():
            write_atomic(answer, json.dumps(body).encode(), durable=False)

    def _described(self, error: BaseException) -> dict[str, Any]:
        """Return an error as the answer to a request."""
        if isinstance(error, FastDataError):
            return {"error": type(error).__name__, "message": str(error), "missing": getattr(error, "missing", False)}
        if isinstance(error, OSError):
            why = "the disk is full" if error.errno == errno.ENOSPC else lacking(error) or error
            return {"error": "StoreError", "message": f"the cache {self._cache.folder}: {why}"}
        return {"error": "RemoteError", "message": f"the downloader failed: {type(error).__name__}: {error}"}

    def _finish(self) -> None:
        """Answer what is done."""
        for future, answer in [item for item in self._tables.items() if item[0].done()]:
            del self._tables[future]
            error = future.exception()
            root = "" if error else os.fspath(future.result().relative_to(self._cache.folder))
            self._answer(answer, self._described(error) if error else {"root": root})
        for path, running in [item for item in self._running.items() if item[1].done()]:
            del self._running[path]
            if (error := running.exception()) is not None:
                self._failed[path] = time.monotonic() + AGAIN_S
            self._end(path, error)

    def _end(self, path: Path, error: BaseException | None) -> None:
        """Answer those who wait for a shard."""
        if (wanted := self._wanted.pop(path, None)) is not None:
            body = {} if error is None else self._described(error)
            for answer in wanted.answers:
                self._answer(answer, body)

    def _begin(self, now: float) -> None:
        """Begin downloads, those that readers wait for first."""
        for path, download in list(self._wanted.items()):
            if path in self._running or now < download.look:
                continue
            if path.exists():
                self._end(path, None)
            elif not any(answer.with_suffix(REQUEST).exists() for answer in download.answers):
                del self._wanted[path]  # nobody waits any more
            elif len(self._running) < SHARDS_AT_ONCE:
                download.look = now + ROOM_S[0]
                try:
                    if not self._start(path, download.shard) and now >= download.since + WAIT_S:
                        raise self._cache.full(download.shard.total.bytes)
                except (FastDataError, OSError) as error:
                    self._end(path, error)
        if any(path not in self._running for path in self._wanted):
            return  # shards that are fetched ahead would take the room
        while len(self._running) < SHARDS_AT_ONCE and (coming := self._next_scheduled(now)) is not None:
            path, shard = coming
            try:
                began = self._start(path, shard, self._schedules.next_use(path))
            except (FastDataError, OSError):
                began = False
            if not began:
                self._coming.clear()
                self._look = now + ROOM_S[1]

    def _start(self, path: Path, shard: Shard, use: float = -1.0) -> bool:
        """Begin to download a shard, which is used in so many samples, if there is room; return whether there is."""
        descriptor = self._cache.begin(path, shard.total.bytes, self._schedules.next_use, use)
        if descriptor is None:
            return False
        self._running[path] = self._threads.submit(fill, self._cache, shard, descriptor, self._pool)
        return True

    def _next_scheduled(self, now: float) -> tuple[Path, Shard] | None:
        """Return the next shard that a Loader will need and that is neither in the cache nor on its way."""

        def skip(path: Path) -> bool:
            return path in self._running or self._failed.get(path, 0.0) > now or path.exists()

        if now >= self._look:
            self._coming = deque(self._schedules.coming(skip)[:COMING])
            self._look = now + LOOK_S[bool(self._coming)]
        while self._coming:
            path, shard = self._coming.popleft()
            if not self._coming:
                self._look = 0.0
            if not skip(path) and self._schedules.next_use(path) != INF:
                return path, shard
        return None


def main(cache: str, folder: str) -> None:
    """Work for the readers of a cache, whose folder in it has this name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    try:
        downloader = Downloader(ShardCache(Path(cache)), Path(cache) / "readers" / folder)
        downloader.sweep()
        downloader.run()
    except FileNotFoundError:
        pass  # somebody has deleted the cache
    except Exception:  # noqa: BLE001  the log has it
        traceback.print_exc()
    finally:
        os._exit(0)  # threads that wait for a server need not be waited for
