"""A folder on a local disk that holds shards of remote stores, shared by all processes of a machine.

    CACHEDIR.TAG                                     marks the folder: nothing is ever deleted in one without it
    turn                                             8 bytes: counts how often readers were asked to let go of shards
    FINGERPRINT/MANIFEST-SUM/manifest.json ...       what a store has besides shards
    FINGERPRINT/VARIANT/shard-00007.XXH3.mdb         a shard, verified, then the places of its records, and a seal
    FINGERPRINT/VARIANT/shard-00007.XXH3.mdb.tmp     a shard that is being fetched

All locks are flock, which the kernel frees when a process ends. A writer holds its .tmp exclusively. A reader holds a shard shared
for as long as it maps it; who evicts needs it exclusively, at once. Names hold checksums, files are only renamed and unlinked, so
what a reader has mapped never changes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from fastdata.errors import StoreError, lacking
from fastdata.store.files import write_atomic
from fastdata.words import human_bytes

__all__ = ["OPENING", "Cache", "Turn", "place_bytes", "places_at", "seal_of", "shard_name"]

MARK = "CACHEDIR.TAG"
TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of fastdata. Delete it when no program uses it.\n"
TURN = "turn"
LOCK = "lock"
POLL_S = 0.02
PATIENCE_S = 0.05  # for a reader to let go of a shard, before another one is evicted that is needed earlier
SHARDS = "*/*/shard-*"

OPENING = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # a link would lead out of the cache

OWN = (TURN, LOCK, "fetcher.log")  # which a process may write again in a folder that was emptied

NextUse = Callable[[Path], float]  # when a shard is used next; inf: nobody knows of a use
Spared = Callable[[Path], bool]


def shard_name(shard: int, xxh3: str) -> str:
    """Return the name of a shard's file in a cache."""
    return f"shard-{shard:05d}.{xxh3}.mdb"


def place_bytes(size: int, records: int) -> int:
    """Return the size of a shard's file in a cache: the shard, a start and a length of 8 bytes each for every record, a seal."""
    return places_at(size) + 16 * records + 16


def places_at(size: int) -> int:
    """Return where the places of the records begin in a shard's file in a cache."""
    return -(-size // 8) * 8


def seal_of(places: bytes | memoryview, xxh3: str) -> bytes:
    """Return the last 16 bytes of a shard's file in a cache. They tell it from that of another shard, and from a damaged one."""
    digest = xxhash.xxh3_128(xxh3.encode())
    digest.update(places)
    return digest.digest()


class Turn:
    """The count of a cache's evictions, shared by all processes. A reader that sees it change lets go of its shards."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / TURN, os.O_RDWR | OPENING, 0o666)
        try:
            if os.fstat(descriptor).st_size < 8:
                os.ftruncate(descriptor, 8)
            self.value = memoryview(mmap.mmap(descriptor, 8)).cast("Q")
        finally:
            os.close(descriptor)

    def advance(self) -> None:
        self.value[0] = (self.value[0] + 1) & ((1 << 64) - 1)


class Cache:
    """A folder of shards that takes at most `limit` bytes. `asked` may be changed later.

    Args:
        folder: created if it does not exist.
        limit: bytes of all shards together, those that are being fetched included; None: what the disk has.
        kept: a pattern of the files that count as shards.
        item: what to call one of them in messages.

    Raises:
        StoreError: the folder holds other files, or cannot be written.
    """

    def __init__(self, folder: Path, limit: int | None = None, kept: str = SHARDS, item: str = "shard") -> None:
        self.folder = folder
        self.asked = limit
        self._kept = kept
        self._item = item
        self._writing = set[Path]()
        self._abandoned = False
        self._disk_took: int | None = None  # when it was full
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MARK).exists():
                self._mark()
            self._turn = Turn(folder)
        except OSError as error:
            raise StoreError(f"the cache {folder} cannot be used: {lacking(error) or error.strerror}") from None

    def _mark(self) -> None:
        others = [path.name for path in self.folder.iterdir() if not path.name.startswith((MARK, *OWN))]
        if others and not (self.folder / MARK).exists():
            raise StoreError(
                f"cache={os.fspath(self.folder)!r} holds other files ({', '.join(sorted(others)[:3])}): "
                "give an empty or a new folder"
            )
        write_atomic(self.folder / MARK, TAG, durable=False)

    @property
    def limit(self) -> int | None:
        """The most bytes of all shards together: those that were asked for, or those that a full disk has taken."""
        return min((limit for limit in (self.asked, self._disk_took) if limit is not None), default=None)

    def files(self) -> list[Path]:
        """Return all shards, those that are being fetched included."""
        return list(self.folder.glob(self._kept))

    def used(self) -> int:
        """Return the bytes of all shards."""
        return sum(_size(path) for path in self.files())

    @contextmanager
    def reserved(
        self, path: Path, size: int, next_use: NextUse, spared: Spared | None = None, wait_s: float = 30.0
    ) -> Iterator[int | None]:
        """Make room for a shard, and yield the descriptor of a file of this size that becomes `path` when the body has ended.

        The file is removed if the body raises an error. Yields None if the shard is there, which another process has fetched in the
        meantime.

        Args:
            path: of the shard.
            size: its bytes.
            next_use: when each shard in the cache is used next: those that are used last go first.
            spared: whether a shard is not to be evicted for this one. With it, there is no room if those that are used last are
                spared, or if readers hold them.
            wait_s: how long to wait for readers to let go of shards.

        Raises:
            CacheFullError: there is no room.
            OSError: the disk is full, or the folder cannot be written.
        """
        temporary = path.with_name(f"{path.name}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._own(temporary, path)
        if descriptor is None:
            yield None
            return
        self._writing.add(temporary)
        try:
            self._make_room(descriptor, size, next_use, spared, wait_s)
            yield descriptor
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            self._writing.discard(temporary)
            os.close(descriptor)

    def abandon(self) -> None:
        """Remove the files that this process has not finished, and begin no other."""
        self._abandoned = True
        for pause_s in (0.01, 0.0):  # for threads that are opening one
            for path in list(self._writing):
                path.unlink(missing_ok=True)
            time.sleep(pause_s)

    def _own(self, temporary: Path, path: Path) -> int | None:
        """Return the descriptor of the temporary file, locked; None: the shard is there. Waits for another process that fetches."""
        while not path.exists():
            if self._abandoned:
                raise OSError(errno.ECANCELED, f"{self.folder} takes no more files of this process")
            descriptor = os.open(temporary, os.O_RDWR | OPENING, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, temporary):
                if not path.exists():
                    return descriptor
                temporary.unlink()  # the other process was done before this file was made
            os.close(descriptor)  # the other process has renamed or removed it
        return None

    def _make_room(self, descriptor: int, size: int, next_use: NextUse, spared: Spared | None, wait_s: float) -> None:
        """Give a file its size once there is room for it."""
        if self.limit is not None and size > self.limit and self._disk_took is None:
            raise CacheFullError(f"cache_size is {self.limit}, but one {self._item} takes {size} bytes: make cache_size larger")
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            with self._locked():
                missing = self._missing(size)
                held = False
                if missing > 0:
                    freed, held = self._evict(missing, next_use, spared, any_other=spared is None and waited >= PATIENCE_S)
                    missing -= freed
                if missing <= 0:
                    os.ftruncate(descriptor, size)
                    return
            if waited >= wait_s or (spared is not None and not held):
                raise CacheFullError(self._full(size))
            self._turn.advance()
            time.sleep(POLL_S)

    def _missing(self, size: int) -> int:
        if self.limit is None:
            return 0
        return self.used() + size - self.limit

    def _full(self, size: int) -> str:
        assert self.limit is not None
        used, limit = human_bytes(self.used()), human_bytes(self.limit)
        return (
            f"the cache {self.folder} is full: a {self._item} needs {human_bytes(size)}, and readers use all of the {used} in it; "
            + ("the disk is full" if self._disk_took is not None else f"cache_size is {limit}: make it larger")
        )

    def _evict(self, missing: int, next_use: NextUse, spared: Spared | None, *, any_other: bool) -> tuple[int, bool]:
        """Remove shards that are used last, or not at all, until so many bytes are free.

        Args:
            any_other: remove others in place of those that readers hold.

        Returns:
            How many bytes are free, and whether readers hold shards that would go.
        """
        uses = []
        for path in self.files():
            try:
                if path not in self._writing:
                    uses.append((next_use(path) if path.suffix == ".mdb" else float("inf"), -_last_read(path), path))
            except FileNotFoundError:
                continue
        freed = held = 0
        for _, _, path in sorted(uses, reverse=True):
            if freed >= missing or (held and freed + held >= missing and not any_other) or (spared is not None and spared(path)):
                break
            found = self._remove(path)
            freed += found
            held += 0 if found else _size(path)
        return freed, held > 0

    def _remove(self, path: Path) -> int:
        """Remove a shard unless a reader or a writer has it; return the bytes that this frees."""
        if not (self.folder / MARK).exists():
            raise StoreError(f"{self.folder} is no cache any more: it lacks {MARK}")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):
                return 0
            path.unlink()
            return os.fstat(descriptor).st_size
        except BlockingIOError:
            return 0
        finally:
            os.close(descriptor)

    def shrink(self) -> None:
        """Take what the cache has now for its limit: the disk is full."""
        with self._locked():
            written = sum(_size(path, written=True) for path in self.files())
        self._disk_took = written if self._disk_took is None else min(written, self._disk_took)

    def drop_dead(self) -> None:
        """Remove files that killed processes have not finished."""
        with self._locked():
            for path in self.files():
                if path.suffix == ".tmp":
                    self._remove(path)

    def drop_unused(self) -> int:
        """Remove every shard that nobody maps, and what killed processes have left; return the bytes freed."""
        with self._locked():
            return sum(self._remove(path) for path in self.files())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | OPENING, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class CacheFullError(StoreError):
    """There is no room in a cache, and none can be made."""


def _size(path: Path, *, written: bool = False) -> int:
    """Return the size of a file, or how much of it is written, in bytes."""
    try:
        return path.stat().st_blocks * 512 if written else path.stat().st_size
    except FileNotFoundError:
        return 0


def _last_read(path: Path) -> float:
    """Return when a shard was last mapped; 0: nobody knows, since the clock was set back later."""
    found = path.stat().st_mtime
    return found if found <= time.time() else 0.0


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still names this open file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
