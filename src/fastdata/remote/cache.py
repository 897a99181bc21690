"""The folder of a cache, all that readers share with the process that downloads for them; and making room in it.

    CACHEDIR.TAG                                   marks the folder: nothing is deleted in one without it
    lock                                           locked by whoever makes room for a shard
    evictions                                      8 bytes, mapped by all: how often shards were evicted
    FINGERPRINT/SUM/manifest.json ...              all of a store but its shards
    FINGERPRINT/VARIANT/shard-00007.XXH3.mdb       a shard
    NAME.tmp                                       a file on its way, locked by its downloader; renamed to NAME once verified
    readers/ID/downloader                          locked by the downloader for life
    readers/ID/log                                 what the downloader printed
    readers/ID/NAME.reader                         a store that a process reads, and its cache_size; locked by that process
    readers/ID/NAME.K.request                      the RemoteFiles that the process waits for, while it waits
    readers/ID/NAME.K.error                        why one of them does not come
    readers/ID/NAME.K.schedule, NAME.K.clock       which shards a Loader will read, and how far it is (reader.py)

ID stands for a user, a version and a set of credentials; there is one downloader for each. A reader that waits takes the
downloader's lock if it is free, and starts a downloader that inherits it; so there are never two. It ends when no NAME.reader is
locked. All locks work between containers that share only the folder, and the kernel frees them, so kills do no harm: a downloader
removes the files of killed readers; the next downloader removes .tmp files that nobody locks, and finds all requests.

Whoever evicts a shard removes its name. Readers that map it read on; when they see the count of evictions change, they unmap what
has no name any more.

The downloader imports this file, so it imports neither numpy nor msgspec: the first batch would wait for them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import StoreError, lacking

READER, REQUEST, ERROR, SCHEDULE, CLOCK = ".reader", ".request", ".error", ".schedule", ".clock"

MARK = "CACHEDIR.TAG"
TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of fastdata. Delete it when no program uses it.\n"
EVICTIONS, LOCK = "evictions", "lock"
OPENING = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # a link would lead out of the cache
PATIENCE_S = 0.1  # for readers to let go of evicted shards
DISK_RESERVE_BYTES = 1 << 20  # of a full disk, for all other files
SHARDS = "*/*/shard-*"

NextUse = Callable[[Path], float]  # when a shard is used next; inf: nobody knows of a use


class RemoteFile(NamedTuple):
    """A file of a store: its name below the URL, its path below the cache, its size, and its checksum or ""."""

    name: str
    path: str
    bytes: int
    xxh3_128: str


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that others see all of it or none."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def map_number(path: Path, flags: int = OPENING) -> memoryview:
    """Return a number in a file, shared by all processes that map it; int64 [1]."""
    descriptor = os.open(path, os.O_RDWR | flags, 0o666)
    try:
        if os.fstat(descriptor).st_size < 8:
            os.ftruncate(descriptor, 8)
        return memoryview(mmap.mmap(descriptor, 8)).cast("q")
    finally:
        os.close(descriptor)


class ShardCache:
    """A folder of shards, which is created if there is none. A StoreError says that it holds other files, or cannot be written.

    limit: the most bytes of all shards, also of those on their way or still mapped by readers, or None for what the disk has.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit: int | None = None
        self._mapped: list[tuple[int, int, float]] = []  # descriptor, bytes and time of evicted shards that readers map
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MARK).exists():
                names = sorted({path.name for path in folder.iterdir() if not path.name.startswith(MARK)} - {"lost+found"})
                if names and not (folder / MARK).exists():
                    raise StoreError(
                        f"cache={os.fspath(folder)!r} holds other files ({', '.join(names[:3])}): give an empty or a new folder"
                    )
                write_whole(folder / MARK, TAG)
            self._evictions = map_number(folder / EVICTIONS)
        except OSError as error:
            raise StoreError(f"the cache {folder} cannot be used: {lacking(error) or error.strerror}") from error

    def begin(self, file: RemoteFile, next_use: NextUse, use: float = -1.0) -> int | None:
        """Make room for a file, and return the descriptor of a new one of its size for `fill`, or None if there is no room yet.

        Shards with the latest next use are evicted first, but none that is used before this one (`use`). Only shards take room.

        Raises:
            FileExistsError, BlockingIOError: the file is there, or is being written.
            StoreError: there will never be room, or the folder is no cache any more.
            OSError: it cannot be written.
        """
        path, temporary = self.folder / file.path, self.folder / f"{file.path}.tmp"
        with self._locked():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_RDWR | OPENING, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() or not temporary.exists():  # its writer has just finished it, or given it up
                    raise FileExistsError
                os.ftruncate(descriptor, 0)
                if path.match(SHARDS) and not self._make_room(file.bytes, next_use, use):
                    raise OSError(errno.ENOSPC, "no room")
                if file.bytes:
                    os.posix_fallocate(descriptor, 0, file.bytes)
            except BaseException as error:
                if not isinstance(error, BlockingIOError):
                    temporary.unlink(missing_ok=True)
                os.close(descriptor)
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    return None
                raise
            return descriptor

    def fill(self, file: RemoteFile, descriptor: int, write: Callable[[int], object]) -> None:
        """Let a function write a file from `begin`, flush it, and then give the file its name; remove it on an error."""
        path, temporary = self.folder / file.path, self.folder / f"{file.path}.tmp"
        try:
            write(descriptor)
            os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove unfinished files that no downloader locks."""
        with self._locked():
            for path in self.folder.glob("[0-9a-f]*/**/*.tmp"):
                with suppress(OSError), path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._evict(path)

    def _make_room(self, size: int, next_use: NextUse, use: float) -> bool:
        """Evict the shards with the latest next use until there is room, and return whether there is.

        If readers still map an evicted shard, wait a moment for its space before evicting more.
        """
        if self.limit is not None and size > self.limit:
            raise StoreError(f"cache_size is {self.limit}, but one shard takes {size} bytes: make cache_size larger")
        free = shutil.disk_usage(self.folder).free - DISK_RESERVE_BYTES
        if self.limit is None and size <= free:
            return True
        shards = dict[Path, os.stat_result]()
        for path in self.folder.glob(SHARDS):
            with suppress(FileNotFoundError):
                shards[path] = path.lstat()
        used = sum(info.st_size for info in shards.values())
        disk = used + self._still_mapped() + free
        limit = disk if self.limit is None else min(self.limit, disk)
        missing = used + self._still_mapped(PATIENCE_S) + size - limit
        ranked = sorted((next_use(path), -shards[path].st_atime, path) for path in shards if path.suffix == ".mdb")
        victims = []
        while missing > 0 and ranked and ranked[-1][0] > use:
            victims.append(ranked.pop()[2])
            missing -= shards[victims[-1]].st_size
        if missing > 0:
            return False
        for path in victims:
            self._evict(path)
            used -= shards[path].st_size
        self._evictions[0] += len(victims)
        return used + self._still_mapped() + size <= limit

    def _evict(self, path: Path) -> None:
        if not (self.folder / MARK).exists():
            raise StoreError(f"{self.folder} is no cache any more: it lacks {MARK}")
        with suppress(OSError):  # a folder of somebody
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._mapped.append((descriptor, os.fstat(descriptor).st_size, time.monotonic()))
            path.unlink()

    def _still_mapped(self, seconds: float = 0.0) -> int:
        """Return the bytes of shards that readers have not let go of, so many seconds after they were evicted."""
        for mapped in list(self._mapped):
            with suppress(BlockingIOError):
                fcntl.flock(mapped[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(mapped[0])
                self._mapped.remove(mapped)
        before = time.monotonic() - seconds
        return sum(size for _, size, evicted in self._mapped if evicted <= before)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | OPENING, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
