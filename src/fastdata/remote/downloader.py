"""The process that downloads for all readers of a cache on this machine. It alone uses object storage. `cache.py` says how.

One thread watches the files of readers, makes room, and hands over to others what readers wait for, and then what schedules say is
used next. The process begins with the first reader, and ends with the last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
import traceback
from bisect import bisect_left
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import FastDataError, StoreError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import CLOCK, ERROR, READER, REQUEST, SCHEDULE, RemoteFile, ShardCache, map_number, write_whole

RANGES = 16  # requests in flight
WANTED_AT_ONCE, AHEAD_AT_ONCE = 8, 4  # files that download: of those that readers wait for, and of those that schedules have next
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


class FileRequest(NamedTuple):
    """Files that a reader waits for. end: until when it waits for room."""

    reader: Reader
    files: list[RemoteFile]
    end: float


class ReadSchedule(NamedTuple):
    """What one Loader will read of one store.

    stamp: the modification time of its file.
    clock: how many samples were read.
    uses: for each file in the cache, its bucket, and the first and the last samples of the stretches in which it is used, in order.
    """

    stamp: int
    clock: memoryview
    uses: dict[Path, tuple[Bucket, RemoteFile, list[int], list[int]]]

    def next_use(self, path: Path) -> float:
        """Return the number of samples until a file is used, or inf if it is not used again."""
        if path not in self.uses:
            return INF
        (_, _, firsts, lasts), now = self.uses[path], self.clock[0]
        k = bisect_left(lasts, now)
        return float(max(firsts[k] - now, 0)) if k < len(firsts) else INF


def fill(cache: ShardCache, bucket: Bucket, file: RemoteFile, descriptor: int, pool: Executor) -> None:
    """Fetch a file into the descriptor that `ShardCache.begin` has opened."""
    cache.fill(file, descriptor, lambda opened: bucket.fetch(file.name, file.bytes, file.xxh3_128, opened, pool))


def copy_manifest(bucket: Bucket, path: Path) -> None:
    """Copy the manifest that a store has now."""
    write_whole(path, bucket.read_twice("manifest.json"))


class Downloader:
    """Downloads for the readers of a cache, whose files are in a folder."""

    def __init__(self, cache: ShardCache, folder: Path) -> None:
        self._cache, self._folder = cache, folder
        self._ranges, self._files, self._files_ahead = map(ThreadPoolExecutor, (RANGES, WANTED_AT_ONCE, AHEAD_AT_ONCE))
        self._readers: dict[str, Reader] = {}
        self._requests: dict[str, FileRequest] = {}
        self._schedules: dict[str, ReadSchedule] = {}
        self._buckets: dict[str, Bucket] = {}
        self._wanted: dict[Path, Future[None]] = {}  # what readers wait for
        self._ahead: list[Future[None]] = []  # what schedules have
        self._coming: list[tuple[float, Path, Bucket, RemoteFile]] = []  # what the schedules have next, in reverse
        self._lives = self._look = 0.0  # when readers and schedules are looked at again,
        self._room = self._room_ahead = 0.0  # and room for what readers wait for, and for what schedules have

    def run(self) -> None:
        """Work until no reader is left."""
        last = time.monotonic() + FIRST_S - GRACE_S
        while (now := time.monotonic()) < last + GRACE_S:
            self._watch(now)
            if now >= self._lives:
                self._lives = now + LIVES_S
                self._drop_readers()
            if self._readers:
                last = now
            finished = {path: future for path, future in self._wanted.items() if future.done()}
            self._wanted = {path: future for path, future in self._wanted.items() if path not in finished}
            for name, request in self._requests.items():
                self._requests[name] = self._serve(name, request, finished, now)
            self._fetch_ahead(now)
            time.sleep(WATCH_S)

    # What readers say

    def _watch(self, now: float) -> None:
        """Look for new files, and forget deleted ones."""
        entries = {entry.name: entry for entry in os.scandir(self._folder)}
        self._requests = {name: request for name, request in self._requests.items() if name in entries}
        self._schedules = {name: schedule for name, schedule in self._schedules.items() if name in entries}
        for name, entry in entries.items():
            reader = name.partition(".")[0]
            with suppress(OSError, ValueError, KeyError, FastDataError):  # it has ended, or it is not known yet
                if name.endswith(READER) and reader not in self._readers:
                    self._add_reader(name)
                elif name.endswith(REQUEST) and name not in self._requests:
                    files = [RemoteFile(*file) for file in json.loads((self._folder / name).read_bytes())]
                    self._requests[name] = FileRequest(self._readers[reader], files, now + WAIT_S)
                elif name.endswith(SCHEDULE):
                    stamp = entry.stat().st_mtime_ns
                    if name not in self._schedules or self._schedules[name].stamp != stamp:
                        self._schedules[name] = self._load_schedule(self._folder / name, self._readers[reader], stamp)

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
        """Set the limit of the cache to the smallest of all readers; a process that opens a store again replaces its own."""
        last = {(one.process, one.url): one.limit for one in sorted(self._readers.values(), key=lambda one: one.opened)}
        self._cache.limit = min((limit for limit in last.values() if limit is not None), default=None)

    def _bucket(self, reader: Reader) -> Bucket:
        name = json.dumps([reader.url, reader.storage])
        if name not in self._buckets:
            self._buckets[name] = Bucket(reader.url, reader.storage)
        return self._buckets[name]

    def _load_schedule(self, path: Path, reader: Reader, stamp: int) -> ReadSchedule:
        bucket = self._bucket(reader)
        schedule = [(RemoteFile(*file), firsts, lasts) for file, firsts, lasts in json.loads(path.read_bytes())]
        uses = {self._cache.folder / file.path: (bucket, file, firsts, lasts) for file, firsts, lasts in schedule}
        self._look = 0.0
        return ReadSchedule(stamp, map_number(path.with_suffix(CLOCK), 0), uses)

    def _next_use(self, path: Path) -> float:
        """Return the number of samples until any Loader uses a file, or inf if no schedule has it."""
        return min((schedule.next_use(path) for schedule in self._schedules.values()), default=INF)

    # Files that readers wait for

    def _serve(self, name: str, request: FileRequest, finished: dict[Path, Future[None]], now: float) -> FileRequest:
        """Begin to download the files of a request, and again if they were evicted; return the rest of the request."""
        for file in request.files:
            path = self._cache.folder / file.path
            try:
                if path in finished:
                    finished[path].result()
                if path.exists() or path in self._wanted or now < self._room:
                    continue
                bucket = self._bucket(request.reader)
                if not file.xxh3_128:  # a manifest
                    self._wanted[path] = self._files.submit(copy_manifest, bucket, path)
                elif (descriptor := self._cache.begin(file, self._next_use)) is not None:
                    self._wanted[path] = self._files.submit(fill, self._cache, bucket, file, descriptor, self._ranges)
                else:
                    self._room, self._room_ahead = now + ROOM_S[0], now + ROOM_S[1]
                    if now < request.end:
                        continue
                    limit, what = self._cache.limit, f"the cache {self._cache.folder} is full of shards that readers use"
                    why = "the disk is full" if limit is None else f"cache_size is {limit}: make it larger, if the disk has room"
                    raise StoreError(f"{what}, and one needs {file.bytes} bytes; {why}")
            except (BlockingIOError, FileExistsError):  # another thread or process brings it
                pass
            except Exception as error:  # noqa: BLE001  the reader waits, whatever happens
                self._report(self._folder / name, error)
                return request._replace(files=[])
        return request

    def _report(self, request: Path, error: Exception) -> None:
        """Tell a reader why it waits in vain."""
        message = str(error)
        if isinstance(error, OSError):
            why = "the disk is full" if error.errno == errno.ENOSPC else lacking(error) or error
            message = f"the cache {self._cache.folder}: {why}"
        elif not isinstance(error, FastDataError):
            message = f"the downloader failed: {type(error).__name__}: {error}"
        body = {"message": message, "missing": getattr(error, "missing", False)}
        write_whole(request.with_suffix(ERROR), json.dumps(body).encode())

    # Files that Loaders will read

    def _fetch_ahead(self, now: float) -> None:
        """Begin to download the next shards of Loaders, unless readers wait for the room."""
        self._ahead = [future for future in self._ahead if not future.done()]
        if now >= self._look:
            self._coming, self._look = self._uses(), now + LOOK_S
        while self._coming and len(self._ahead) < AHEAD_AT_ONCE and now >= self._room_ahead:
            _, path, bucket, file = self._coming[-1]
            use = self._next_use(path)
            try:
                descriptor = self._cache.begin(file, self._next_use, use) if use != INF else -1
            except (BlockingIOError, FileExistsError):
                descriptor = -1
            except (FastDataError, OSError):
                descriptor = None
            if descriptor is None:
                self._room_ahead = now + ROOM_S[1]
                return
            if descriptor >= 0:
                self._ahead.append(self._files_ahead.submit(fill, self._cache, bucket, file, descriptor, self._ranges))
            self._coming.pop()

    def _uses(self) -> list[tuple[float, Path, Bucket, RemoteFile]]:
        """Return the scheduled files that the cache lacks, the next one last."""
        found: dict[Path, tuple[float, Path, Bucket, RemoteFile]] = {}
        for schedule in self._schedules.values():
            for path, (bucket, file, _, _) in schedule.uses.items():
                use = schedule.next_use(path)
                if use != INF and (path not in found or use < found[path][0]):
                    found[path] = use, path, bucket, file
        return sorted((use for path, use in found.items() if not path.exists()), key=lambda use: use[0], reverse=True)


def main(cache: str, folder: str) -> None:
    """Work for the readers of a cache whose files are in the folder of this name."""
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
