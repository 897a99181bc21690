"""The process that downloads for readers of a cache on this machine, which leave object storage to it. `cache.py` says how.

One thread watches the files of readers, makes room, and hands to other threads what readers wait for, and then what schedules say
is used next. The process begins with the first reader, and ends with the last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fastdata.errors import FastDataError, StoreError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import CLOCK, ERROR, READER, REQUEST, SCHEDULE, RemoteFile, ShardCache, map_number, write_whole

FILES_AT_ONCE = 12  # that download,
AHEAD_AT_ONCE = 6  # and at most so many of them if schedules alone have the next one
WATCH_S = 0.005  # between two looks at the folder
GRACE_S = 2.0  # without readers
FIRST_S = 30.0  # for the first reader to come
WAIT_S = 30.0  # for room in the cache, while a reader waits
ROOM_S = 0.02, 0.1  # between two looks for room: for a file that a reader waits for, and for others
LOOK_S = 0.5  # between two looks at the schedules
INF = float("inf")


class Reader(NamedTuple):
    """A store that a process reads. file: describes it, written and locked by its `Session`."""

    file: BinaryIO
    url: str
    storage: dict[str, Any]
    limit: int | None


class FileRequest(NamedTuple):
    """Files that a reader waits for. end: until when it waits for room."""

    reader: Reader
    files: list[RemoteFile]
    end: float


class ReadSchedule(NamedTuple):
    """The planned reads of one store by one Loader.

    stamp: the modification time of its file.
    clock: how many samples were read.
    uses: for each path in the cache, a bucket, the file in it, and the first and the last sample of each stretch of its uses.
    """

    stamp: int
    clock: memoryview
    uses: dict[Path, tuple[Bucket, RemoteFile, list[tuple[int, int]]]]


class Downloader:
    """Downloads for the readers of a cache whose files are in one folder."""

    def __init__(self, cache: ShardCache, folder: Path) -> None:
        self._cache, self._folder = cache, folder
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE)
        self._readers: dict[str, Reader] = {}
        self._requests: dict[str, FileRequest] = {}
        self._schedules: dict[str, ReadSchedule] = {}
        self._buckets: dict[str, Bucket] = {}
        self._downloads: dict[Path, Future[None]] = {}
        self._coming: list[tuple[Path, Bucket, RemoteFile]] = []  # what the schedules have next, in reverse
        self._look = 0.0  # when schedules are looked at again,
        self._room = self._room_ahead = 0.0  # and room for what readers wait for, and for what schedules have

    def run(self) -> None:
        """Work until no reader is left."""
        last = time.monotonic() + FIRST_S - GRACE_S
        while (now := time.monotonic()) < last + GRACE_S:
            self._watch(now)
            self._drop_readers()
            if self._readers:
                last = now
            ended = {path: self._downloads.pop(path) for path, future in list(self._downloads.items()) if future.done()}
            for name, request in self._requests.items():
                self._serve(name, request, ended, now)
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
                    file = (self._folder / name).open("rb")
                    self._readers[reader] = Reader(file, **json.load(file))
                elif name.endswith(REQUEST) and name not in self._requests:
                    files = [RemoteFile(*file) for file in json.loads((self._folder / name).read_bytes())]
                    self._requests[name] = FileRequest(self._readers[reader], files, now + WAIT_S)
                elif name.endswith(SCHEDULE):
                    stamp = entry.stat().st_mtime_ns
                    if name not in self._schedules or self._schedules[name].stamp != stamp:
                        self._schedules[name] = self._load_schedule(self._folder / name, self._readers[reader], stamp)

    def _drop_readers(self) -> None:
        """Remove the files of readers that have ended. The smallest limit of the others applies."""
        for name, reader in list(self._readers.items()):
            with suppress(BlockingIOError):
                fcntl.lockf(reader.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                reader.file.close()
                del self._readers[name]
                for path in self._folder.glob(f"{name}.*"):
                    path.unlink(missing_ok=True)
        last = {(name.rpartition("-")[0], reader.url): reader.limit for name, reader in self._readers.items()}  # of each process
        self._cache.limit = min((limit for limit in last.values() if limit is not None), default=None)

    def _bucket(self, reader: Reader) -> Bucket:
        name = json.dumps([reader.url, reader.storage])
        if name not in self._buckets:
            self._buckets[name] = Bucket(reader.url, reader.storage)
        return self._buckets[name]

    def _load_schedule(self, path: Path, reader: Reader, stamp: int) -> ReadSchedule:
        bucket = self._bucket(reader)
        files = [(RemoteFile(*file), stretches) for file, stretches in json.loads(path.read_bytes())]
        uses = {self._cache.folder / file.path: (bucket, file, stretches) for file, stretches in files}
        self._look = 0.0
        return ReadSchedule(stamp, map_number(path.with_suffix(CLOCK), 0), uses)

    def _next_use(self, path: Path) -> float:
        """Return the number of samples until any Loader uses a file, or inf if no schedule has it."""
        uses = [(schedule.uses[path][2], schedule.clock[0]) for schedule in self._schedules.values() if path in schedule.uses]
        return min((max(first - now, 0) for stretches, now in uses for first, last in stretches if last >= now), default=INF)

    # Files that readers wait for

    def _begin(self, bucket: Bucket, file: RemoteFile, use: float = -1.0) -> bool:
        """Begin to download a file, unless it is there or on its way; return whether there is room for it."""
        path = self._cache.folder / file.path
        with suppress(BlockingIOError, FileExistsError):  # another process brings it
            if path not in self._downloads and not path.exists():
                descriptor = self._cache.begin(file, self._next_use, use)
                if descriptor is None:
                    return False
                fetch = partial(bucket.fetch, file.name, file.bytes, file.xxh3_128)
                self._downloads[path] = self._pool.submit(self._cache.fill, file, descriptor, fetch)
        return True

    def _serve(self, name: str, request: FileRequest, ended: dict[Path, Future[None]], now: float) -> None:
        """Begin to download a request's files, again if they were evicted. Report an error, and forget the files."""
        try:
            for file in request.files:
                path = self._cache.folder / file.path
                if path in ended:
                    ended[path].result()
                if now >= self._room and not self._begin(self._bucket(request.reader), file):
                    self._room, self._room_ahead = now + ROOM_S[0], now + ROOM_S[1]
                    if now > request.end:
                        limit, what = self._cache.limit, f"the cache {self._cache.folder} is full of shards in use"
                        why = f"cache_size is {limit}: make it larger, if the disk has room" if limit else "the disk is full"
                        raise StoreError(f"{what}, and another needs {file.bytes} bytes; {why}")
        except Exception as error:  # noqa: BLE001  the reader waits, whatever happens
            why = "the disk is full" if getattr(error, "errno", 0) == errno.ENOSPC else lacking(error) or repr(error)
            message = str(error) if isinstance(error, FastDataError) else f"the cache {self._cache.folder} cannot be filled: {why}"
            body = {"message": message, "missing": getattr(error, "missing", False)}
            write_whole((self._folder / name).with_suffix(ERROR), json.dumps(body).encode())
            request.files.clear()

    # Files that Loaders will read

    def _fetch_ahead(self, now: float) -> None:
        """Begin to download the next shards of Loaders, unless readers wait for the room."""
        if now >= self._look:
            self._coming, self._look = self._uses(), now + LOOK_S
        while self._coming and len(self._downloads) < AHEAD_AT_ONCE and now >= self._room_ahead:
            path, bucket, file = self._coming[-1]
            use = self._next_use(path)
            with suppress(FastDataError, OSError):
                if use == INF or self._begin(bucket, file, use):
                    self._coming.pop()
                    continue
            self._room_ahead = now + ROOM_S[1]

    def _uses(self) -> list[tuple[Path, Bucket, RemoteFile]]:
        """Return the scheduled files that the cache lacks, the next one last."""
        files = {path: (path, *use[:2]) for schedule in self._schedules.values() for path, use in schedule.uses.items()}
        uses = {path: self._next_use(path) for path in files if not path.exists()}
        return [files[path] for path in sorted(uses, key=uses.__getitem__, reverse=True) if uses[path] < INF]


def main(cache: str, folder: str) -> None:
    """Work for the readers of a cache whose files are in the folder of this name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shards = ShardCache(Path(cache))
        shards.sweep()
        Downloader(shards, Path(cache) / "readers" / folder).run()
    except Exception:  # noqa: BLE001  the log has it
        traceback.print_exc()
    finally:
        os._exit(0)  # threads that wait for a server need not be waited for
