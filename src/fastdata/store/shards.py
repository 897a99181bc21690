"""LMDB shards: a writer, and readers that survive forks, pickling and opening a file twice.

LMDB has limits (py-lmdb 3.0): a process may open a file only once; an environment must not be used after a fork; a buffer must not
outlive its environment; nothing that is read is checked. So each process has a registry of environments, a forked child drops the
ones it inherits, and sizes are compared with the manifest before a file is opened.
"""

from __future__ import annotations

import bisect
import errno
import os
import resource
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from fastdata.errors import FormatError, StoreError
from fastdata.store.files import FileSum, file_sum

__all__ = ["ShardReader", "ShardWriter", "allow_files", "key"]

Array = np.ndarray[Any, np.dtype[Any]]

MAP_BYTES = 1 << 40  # address space, not disk. It is stored in the file, so it must never change
COMMIT_BYTES = 32 << 20  # held in memory by one transaction. It determines the bytes of the file, so it must never change


def key(index: int) -> bytes:
    """Return the key of a record: its index in the shard, 8 bytes big-endian, so that keys sort as records do."""
    return index.to_bytes(8, "big")


class ShardWriter:
    """Writes one shard to a file, which is complete after `finish`.

    The same records give the same bytes: they are appended in order, committed at fixed amounts, in a map of fixed size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._env = lmdb.open(
                os.fsencode(path), subdir=False, map_size=MAP_BYTES, lock=False, sync=False, max_spare_txns=0, lib_version=0
            )
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._txn = self._env.begin(write=True)
        self._pending = 0
        self.count = 0

    def append(self, record: bytes) -> None:
        try:
            self._txn.put(key(self.count), record, append=True)
            self.count += 1
            self._pending += len(record)
            if self._pending >= COMMIT_BYTES:
                self._txn.commit()
                self._txn = self._env.begin(write=True)
                self._pending = 0
        except lmdb.Error as error:
            raise self._failed(error) from error

    def finish(self) -> FileSum:
        """Commit the last records, and return the size and the checksum of the file. It is not flushed to disk."""
        try:
            self._txn.commit()
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._env.close()
        return file_sum(self._path)

    def _failed(self, error: lmdb.Error) -> StoreError:
        free = shutil.disk_usage(self._path.parent).free
        why = os.strerror(errno.ENOSPC) if free < 1 << 20 else str(error)  # LMDB reports a full disk as an input/output error
        return StoreError(f"cannot write {self._path}: {why}; {free} bytes are free there")

    def abort(self) -> None:
        """Remove the file."""
        self._env.close()
        self._path.unlink(missing_ok=True)


class _Env:
    """An open environment, shared by the readers of a process."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.users = 0


Opened = dict[int, tuple[tuple[int, int], _Env]]  # the open shards of a reader

_lock = threading.Lock()
_envs: dict[tuple[int, int], _Env] = {}
_released: deque[tuple[Opened, int]] = deque()  # of readers that are gone, with their `_forks`
_forks = 0  # forks between the first process and this one: a reader from before the last fork opens its shards again


def _after_fork() -> None:
    global _lock, _forks
    _lock = threading.Lock()
    _forks += 1
    for entry in _envs.values():
        entry.env.close()  # closes the child's mapping and descriptor, not the parent's
    _envs.clear()


os.register_at_fork(after_in_child=_after_fork)


def _open(path: Path) -> tuple[tuple[int, int], _Env]:
    info = path.stat()
    where = info.st_dev, info.st_ino
    with _lock:
        _close_released()
        if where not in _envs:
            try:
                allow_files(len(_envs))
                env = lmdb.open(
                    os.fsencode(path), subdir=False, readonly=True, create=False, lock=False, readahead=False, lib_version=0
                )
            except lmdb.Error as error:
                raise FormatError(f"{path} cannot be opened as LMDB: {error}; run fastdata verify {path.parent.parent}") from error
            _envs[where] = _Env(env)
        _envs[where].users += 1
        return where, _envs[where]


def allow_files(count: int) -> None:
    """Raise the limit of open files: each open shard needs one, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + 64 > soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else count + 65_536, hard))


def _release(shards: Opened, forks: int) -> None:
    """Close the shards of a reader that is gone, now or at the next `_open`.

    The garbage collector may call this in the middle of `_open`, in the thread that holds the lock, so it never waits for it.
    """
    _released.append((shards, forks))
    if _lock.acquire(blocking=False):
        try:
            _close_released()
        finally:
            _lock.release()


def _close_released() -> None:
    while _released:
        shards, forks = _released.popleft()
        for where, entry in shards.values() if forks == _forks else ():
            entry.users -= 1
            if entry.users == 0 and _envs.pop(where, None) is not None:
                entry.env.close()


class ShardReader:
    """Random access to the records of one variant. A shard is opened when it is first read. Pickling keeps only the paths.

    Args:
        paths: the shards, in order.
        counts: the number of records in each.
        sizes: the size of each file in bytes, from the manifest: mapping a shorter file would kill the process.
        rows: the numbers of the records to read; None: all.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], sizes: Sequence[int], rows: Any = None) -> None:
        self._paths = list(paths)
        self._sizes = list(sizes)
        self._starts = [0, *accumulate(counts)]
        self._rows = rows
        self._reset()

    def _reset(self) -> None:
        self._opened: Opened = {}
        self._opening = threading.Lock()
        self._local = threading.local()  # each thread needs its own read transactions
        self._forks = _forks
        self._finalizer = weakref.finalize(self, _release, self._opened, _forks)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        return self._starts[-1] if self._rows is None else len(self._rows)

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record. The view is valid as long as this reader: decode or copy it at once."""
        if self._forks != _forks:
            self._finalizer.detach()
            self._reset()
        if self._rows is not None:
            index = int(self._rows[index])
        shard = bisect.bisect_right(self._starts, index) - 1
        try:
            txn = self._local.txns[shard]
        except (AttributeError, KeyError):
            txn = self._begin(shard)
        try:
            record: memoryview | None = txn.get(key(index - self._starts[shard]))
        except lmdb.Error as error:
            raise FormatError(f"{self._paths[shard]} is damaged: {error}; run fastdata verify") from error
        if record is None:
            raise FormatError(f"{self._paths[shard]} has no record {index - self._starts[shard]}; run fastdata verify")
        return record

    def expect(self, indices: Array) -> None:
        """Do nothing: LMDB reads records when they are needed."""

    def lengths(self) -> Array:
        """Return the bytes of each record, int64 [n]."""
        return np.array([len(self.get(k)) for k in range(len(self))], np.int64)

    def count(self, shard: int) -> int:
        """Return the number of records that LMDB finds in a shard."""
        self._begin(shard)
        return int(self._opened[shard][1].env.stat()["entries"])

    def _begin(self, shard: int) -> Any:
        if not 0 <= shard < len(self._paths):
            raise IndexError(f"the index is not from 0 to {len(self) - 1}")
        path = self._paths[shard]
        with self._opening:
            if shard not in self._opened:
                check_size(path, self._sizes[shard])
                self._opened[shard] = _open(path)
        if not hasattr(self._local, "txns"):
            self._local.txns = {}
        txn = self._opened[shard][1].env.begin(buffers=True)
        self._local.txns[shard] = txn
        return txn

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths, "_sizes": self._sizes, "_starts": self._starts, "_rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def check_size(path: Path, size: int) -> None:
    """Raise an error unless a file exists and has the size that the manifest says."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy the whole store again, or prepare it again") from None
    if found != size:
        raise FormatError(
            f"{path} has {found} bytes, the manifest says {size}: it was cut short or changed; copy it again, or prepare it again"
        )
