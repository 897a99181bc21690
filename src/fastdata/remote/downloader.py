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
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import FastDataError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import ShardCache
from fastdata.remote.client import ANSWER, READER, REQUEST, SCHEDULE, RemoteFile
from fastdata.remote.prefetch import INF, Schedule, Schedules
from fastdata.store.files import MANIFEST, FileSum, write_atomic
from fastdata.store.reader import raise_file_limit

__all__ = ["fill", "main"]

REQUESTS = 16  # in flight
FILES_AT_ONCE = 4
WANTED_AT_ONCE = 8  # for readers that wait, such as for the tables of a store
WATCH_S = 0.005  # between two looks at the folder
LIVES_S = 0.25  # between two looks whether readers live
GRACE_S = 2.0  # without readers
FIRST_S = 30.0  # for the first reader to come
WAIT_S = 30.0  # for room in the cache, while a reader waits
ROOM_S = 0.02, 0.1  # between two looks for room: for a file that a reader waits for, and for others
LOOK_S = 0.5  # between two looks at the schedules
AGAIN_S = 5.0  # until a shard that could not be fetched ahead is tried again


class Reader(NamedTuple):
    """A store that a process reads, as its file says: see `Session`. descriptor: of the file, which the process locks."""

    descriptor: int
    process: str
    opened: int
    url: str
    storage: dict[str, Any]
    limit: int | None


@dataclass
class Download:
    """A file that readers wait for, or that a Loader will read."""

    bucket: Bucket
    file: RemoteFile
    answers: set[Path] = field(default_factory=set)  # the files of those who wait
    since: float = field(default_factory=time.monotonic)
    look: float = 0.0  # when room for it is looked for again


def fill(cache: ShardCache, bucket: Bucket, file: RemoteFile, descriptor: int, pool: Executor) -> None:
    """Fetch a file into what `ShardCache.begin` has opened, check it, flush it, and give it its name."""
    whole = False
    try:
        bucket.fetch(file.name, FileSum(file.bytes, file.xxh3_128), descriptor, pool)
        whole = True
    finally:
        cache.finish(descriptor, cache.folder / file.path, whole=whole)


class Downloader:
    """Downloads for the readers of a cache, whose files are in a folder."""

    def __init__(self, cache: ShardCache, folder: Path) -> None:
        self._cache = cache
        self._folder = folder
        self._requests = ThreadPoolExecutor(REQUESTS)
        self._threads = ThreadPoolExecutor(FILES_AT_ONCE + WANTED_AT_ONCE)  # for files, and for manifests
        self._readers: dict[str, Reader] = {}
        self._asked = set[str]()  # requests that are known
        self._schedules = Schedules()
        self._buckets: dict[str, Bucket] = {}
        self._manifests: dict[Future[bytes], Path] = {}  # and the answer
        self._wanted: dict[Path, Download] = {}  # in the order of asking
        self._running: dict[Path, Future[None]] = {}
        self._coming: list[tuple[Path, Download]] = []  # what the schedules have next, in reverse
        self._failed: dict[Path, float] = {}  # until when shards are left alone
        self._look = self._room_look = self._lives = 0.0  # when schedules, room for what they have, and readers are looked at again

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
                self._begin_wanted(now)
                self._begin_scheduled(now)
                time.sleep(WATCH_S)
        finally:
            for path in self._running:
                path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)

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
                with suppress(OSError, ValueError, KeyError, FastDataError):  # its reader has ended
                    info = entry.stat()
                    stamp = info.st_ino, info.st_mtime_ns
                    if name not in self._schedules or self._schedules[name].stamp != stamp:
                        self._load_schedule(name, stamp)
        for name in self._schedules.keys() - entries.keys():
            del self._schedules[name]

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
            bucket = self._bucket(reader)
            if body is None:
                self._manifests[self._threads.submit(bucket.read_twice, MANIFEST)] = answer
                return
            file = RemoteFile(*body)
            self._wanted.setdefault(self._cache.folder / file.path, Download(bucket, file)).answers.add(answer)
        except Exception as error:  # noqa: BLE001  the reader waits for an answer, whatever happens
            self._answer(answer, self._described(error))

    def _load_schedule(self, name: str, stamp: tuple[int, int]) -> None:
        body = json.loads((self._folder / name).read_bytes())
        bucket = self._bucket(self._readers[name.partition(".")[0]])
        uses = {self._cache.folder / shard[1]: (Download(bucket, RemoteFile(*shard)), uses) for shard, uses in body["uses"]}
        self._schedules[name] = Schedule(self._folder / body["clock"], uses, stamp)
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
        for manifest, answer in [item for item in self._manifests.items() if item[0].done()]:
            del self._manifests[manifest]
            error = manifest.exception()
            self._answer(answer, self._described(error) if error else {"manifest": manifest.result().decode("latin-1")})
        for path, running in [item for item in self._running.items() if item[1].done()]:
            del self._running[path]
            if (error := running.exception()) is not None:
                self._failed[path] = time.monotonic() + AGAIN_S
            self._end(path, error)

    def _end(self, path: Path, error: BaseException | None) -> None:
        """Answer those who wait for a file."""
        if (wanted := self._wanted.pop(path, None)) is not None:
            body = {} if error is None else self._described(error)
            for answer in wanted.answers:
                self._answer(answer, body)

    def _begin_wanted(self, now: float) -> None:
        """Begin to download what readers wait for."""
        for path, download in list(self._wanted.items()):
            if path in self._running or now < download.look:
                continue
            if path.exists():
                self._end(path, None)
            elif not any(answer.with_suffix(REQUEST).exists() for answer in download.answers):
                del self._wanted[path]  # nobody waits any more
            elif len(self._running) < WANTED_AT_ONCE:
                download.look = now + ROOM_S[0]
                try:
                    if not self._start(path, download) and now >= download.since + WAIT_S:
                        raise self._cache.full(download.file.bytes)
                except (FastDataError, OSError) as error:
                    self._end(path, error)

    def _begin_scheduled(self, now: float) -> None:
        """Begin to download what Loaders will need, unless it would take the room of what readers wait for."""

        def is_needed(path: Path) -> bool:
            return path not in self._running and self._failed.get(path, 0.0) <= now and not path.exists()

        if now >= self._look:
            self._coming = self._schedules.coming(is_needed)[::-1]
            self._look = now + LOOK_S
        while (
            self._coming
            and len(self._running) < FILES_AT_ONCE
            and now >= self._room_look
            and self._wanted.keys() <= self._running.keys()
        ):
            path, download = self._coming[-1]
            use = self._schedules.next_use(path)
            try:
                if use != INF and is_needed(path) and not self._start(path, download, use):
                    self._room_look = now + ROOM_S[1]
                    return
            except (FastDataError, OSError):
                self._room_look = now + ROOM_S[1]
                return
            self._coming.pop()

    def _start(self, path: Path, download: Download, use: float = -1.0) -> bool:
        """Begin to download a file, which is used in so many samples, if there is room; return whether there is."""
        descriptor = self._cache.begin(path, download.file.bytes, self._schedules.next_use, use)
        if descriptor is None:
            return False
        self._running[path] = self._threads.submit(fill, self._cache, download.bucket, download.file, descriptor, self._requests)
        return True


def main(cache: str, folder: str) -> None:
    """Work for the readers of a cache, whose folder in it has this name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
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
