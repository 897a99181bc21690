"""LMDB shards: a writer, and readers that survive forks, pickling, damage and the replacement of files."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
import stat
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from fastdata.errors import FormatError, StoreError, lacking
from fastdata.store.files import FileSum, Stamp, file_sum, open_regular
from fastdata.store.tree import BROKEN, Tree

__all__ = ["ShardReader", "ShardWriter", "allow_files", "key"]

Array = np.ndarray[Any, np.dtype[Any]]

MAP_BYTES = 1 << 40  # address space, not disk. It is stored in the file, so it must never change
LONGEST = (1 << 32) - 1  # bytes of a record that LMDB can hold
MAP_ROOM = 256 << 20  # in a map that grows, for one transaction
MAP_SIZE_AT = 32  # where the map's size stands in a page: after the page's header, the magic number, the version and an address
COMMIT_BYTES = 32 << 20  # held in memory by one transaction. It determines the bytes of the file, so it must never change


def key(index: int) -> bytes:
    """Return the key of a record: its index in the shard, 8 bytes big-endian, so that keys sort as records do."""
    return index.to_bytes(8, "big")


class ShardWriter:
    """Writes one shard to a file, which is complete after `finish`.

    The same records give the same bytes: they are appended in order, committed at fixed amounts, in a map of fixed size. If a limit
    of address space does not allow this size, the map grows with the file, which gets the number of the fixed size in the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            try:
                self._env, self._grows = self._open(MAP_BYTES), False
            except lmdb.MemoryError:
                self._env, self._grows = self._open(MAP_ROOM), True
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._txn = self._env.begin(write=True)
        self._pending = 0
        self.count = 0

    def _open(self, map_bytes: int) -> Any:
        return lmdb.open(
            os.fsencode(self._path), subdir=False, map_size=map_bytes, lock=False, sync=False, max_spare_txns=0, lib_version=0
        )

    def _begin(self) -> Any:
        """Begin a transaction, with room in the map for all that it may write."""
        if self._grows:
            used = self._path.stat().st_size
            if used + MAP_ROOM > self._env.info()["map_size"]:
                self._env.set_mapsize(used + 4 * MAP_ROOM)
        return self._env.begin(write=True)

    def append(self, record: bytes) -> None:
        try:
            self._txn.put(key(self.count), record, append=True)
            self.count += 1
            self._pending += len(record)
            if self._pending >= COMMIT_BYTES:
                self._txn.commit()
                self._txn = self._begin()
                self._pending = 0
        except lmdb.Error as error:
            raise self._failed(error) from error

    def finish(self) -> FileSum:
        """Commit the last records, and return the size and the checksum of the file. It is not flushed to disk."""
        try:
            self._txn.commit()
        except lmdb.Error as error:
            raise self._failed(error) from error
        page = self._env.stat()["psize"]
        self._env.close()
        if self._grows:
            with self._path.open("r+b") as file:
                for meta in (0, page):  # LMDB's two pages about itself
                    file.seek(meta + MAP_SIZE_AT)
                    file.write(MAP_BYTES.to_bytes(8, sys.byteorder))
        return file_sum(self._path)

    def _failed(self, error: lmdb.Error) -> StoreError:
        if found := lacking(error):
            return StoreError(f"cannot write {self._path}: {found}")
        if isinstance(error, lmdb.MapFullError) and self._grows:
            return StoreError(f"cannot write {self._path}: a record is too large for the limit that `ulimit -v` shows: raise it")
        if not self._path.parent.is_dir():
            return StoreError(f"cannot write {self._path}: there is no folder {self._path.parent}: make it, or see what removed it")
        free = shutil.disk_usage(self._path.parent).free
        why = os.strerror(errno.ENOSPC) if free < 1 << 20 else str(error)  # LMDB reports a full disk as an input/output error
        return StoreError(f"cannot write {self._path}: {why}; {free} bytes are free there")

    def abort(self) -> None:
        """Remove the file."""
        self._env.close()
        self._path.unlink(missing_ok=True)


_lock = threading.Lock()
_trees = weakref.WeakValueDictionary[tuple[int, int], Tree]()  # the shards that this process has mapped, by device and inode


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it. What is mapped stays valid in a child


os.register_at_fork(after_in_child=_after_fork)


def _open(path: Path, size: int) -> Tree:
    """Map a shard, once for all readers of this process, until the last of them is gone."""
    with _lock:
        allow_files(len(_trees))
        try:
            with open_regular(path) as file:
                info = os.fstat(file.fileno())
                check_bytes(path, info.st_size, size)
                tree = _trees.get((info.st_dev, info.st_ino))
                if tree is None:
                    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # has a descriptor of its own
                    mapped.madvise(mmap.MADV_RANDOM)
                    tree = _trees[info.st_dev, info.st_ino] = Tree(mapped)
                return tree
        except OSError as error:
            why = lacking(error)
            raise StoreError(f"{path} cannot be opened: {why}" if why else f"{path} cannot be read: {error.strerror}") from None
        except BROKEN as error:
            raise _damaged(path, error) from None


def _damaged(path: Path, error: object) -> FormatError:
    return FormatError(f"{path} is damaged: {error}; run fastdata verify {path.parent.parent}")


def allow_files(count: int) -> None:
    """Raise the limit of open files: each open shard needs one, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + 64 > soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else count + 65_536, hard))


class ShardReader:
    """Random access to the records of one variant. A shard is mapped when it is first read. Pickling keeps only the paths.

    Args:
        paths: the shards, in order.
        counts: the number of records in each.
        sizes: the size of each file in bytes, from the manifest.
        lengths: the bytes of each record; None: they are not known. They are not pickled.
        manifest: of the store that the shards belong to. While it is another, no shard is opened; None: that is not looked at.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        counts: Sequence[int],
        sizes: Sequence[int],
        lengths: Any = None,
        manifest: Stamp | None = None,
    ) -> None:
        self._paths = list(paths)
        self._sizes = list(sizes)
        self._starts = [0, *accumulate(counts)]
        self._lengths = None if lengths is None else memoryview(np.minimum(lengths, LONGEST).astype(np.uint32))  # quick to index
        self._manifest = manifest
        self._opened: dict[int, Tree] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held.

        Raises:
            FormatError: the shard is damaged, or another file than the manifest says.
            StoreError: the shard cannot be read, or the store was replaced.
        """
        shard = bisect_right(self._starts, index) - 1
        try:
            tree = self._opened[shard]
        except KeyError:
            tree = self.open(shard)
        number = index - self._starts[shard]
        try:
            record = tree.get(number)
        except BROKEN as error:
            raise _damaged(self._paths[shard], error) from None
        if self._lengths is not None and len(record) != self._lengths[index]:
            found = f"record {number} has {len(record)} bytes, the store's tables say {self._lengths[index]}"
            raise _damaged(self._paths[shard], found)
        return record

    def expect(self, indices: Array) -> None:
        """Do nothing: records are read when they are needed."""

    def lengths(self) -> Array:
        """Return the bytes of each record, int64 [n]."""
        return np.array([len(self.get(k)) for k in range(len(self))], np.int64)

    def copy_of(self, index: int) -> None:
        """Return None: what is read is the store itself."""

    def open(self, shard: int) -> Tree:
        """Map a shard, and check what says where its records lie. The store must be the one that it was."""
        if not 0 <= shard < len(self._paths):
            raise IndexError(f"the index is not from 0 to {len(self) - 1}")
        path, count = self._paths[shard], self._starts[shard + 1] - self._starts[shard]
        try:
            tree = _open(path, self._sizes[shard])
        except StoreError:
            if self._manifest is not None:
                with suppress(OSError):
                    self._manifest.compare()
            raise
        if self._manifest is not None:  # after the file was opened: who replaces a store removes its manifest first
            self._manifest.check()
        if tree.count != count:
            raise _damaged(path, f"it has {tree.count} records, the manifest says {count}")
        return self._opened.setdefault(shard, tree)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lengths": None, "_opened": {}}


def check_size(path: Path, size: int) -> None:
    """Raise an error unless there is a file of the size that the manifest says."""
    try:
        info = path.stat()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy the whole store again, or prepare it again") from None
    if not stat.S_ISREG(info.st_mode):
        raise FormatError(f"{path} is not a regular file; copy the whole store again, or prepare it again")
    check_bytes(path, info.st_size, size)


def check_bytes(path: Path, found: int, size: int) -> None:
    """Raise an error unless a file has the size that the manifest says."""
    if found != size:
        raise FormatError(
            f"{path} has {found} bytes, the manifest says {size}: it was cut short or changed; copy it again, or prepare it again"
        )
