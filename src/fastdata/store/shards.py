"""LMDB shards: one writer, and readers that survive fork, pickling and a second open of the same file.

What shaped this file (py-lmdb 3.0): one process may open a file only once; an environment must not be used across a fork; a
buffer must not outlive its environment; LMDB checks nothing of what it reads. So environments live in a registry per process,
a forked child drops what it inherited, and sizes are compared with the manifest before a file is opened.
"""

from __future__ import annotations

import bisect
import errno
import os
import resource
import shutil
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from fastdata.errors import FormatError, StoreError
from fastdata.store.files import FileSum, file_sum

__all__ = ["ShardReader", "ShardWriter", "key"]

MAP_BYTES = 1 << 40  # address space, not disk. Part of the file's bytes, so the same for every shard ever written
COMMIT_BYTES = 32 << 20  # part of the file's bytes too: how much one transaction holds in memory


def key(index: int) -> bytes:
    """The key of a shard's record: its place in the shard, 8 bytes big-endian, so that order of keys is order of samples."""
    return index.to_bytes(8, "big")


class ShardWriter:
    """Writes one shard to a temporary file; `finish` moves it to its place, where it survives the process, but not a power cut.

    The same records give the same bytes: appended in order, committed at fixed amounts, in a map of fixed size.
    """

    def __init__(self, temporary: Path) -> None:
        self._path = temporary
        try:
            self._env = lmdb.open(
                os.fsencode(temporary), subdir=False, map_size=MAP_BYTES, lock=False, sync=False, max_spare_txns=0, lib_version=0
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

    def finish(self, path: Path) -> FileSum:
        try:
            self._txn.commit()
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._env.close()
        total = file_sum(self._path)
        self._path.replace(path)
        return total

    def _failed(self, error: lmdb.Error) -> StoreError:
        free = shutil.disk_usage(self._path.parent).free
        why = os.strerror(errno.ENOSPC) if free < 1 << 20 else str(error)  # LMDB calls a full disk an input/output error
        return StoreError(f"cannot write {self._path}: {why}; {free} bytes are free there")

    def abort(self) -> None:
        """Leave nothing behind."""
        self._env.close()
        self._path.unlink(missing_ok=True)


class _Env:
    """An open environment, shared by the readers of a process."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.users = 0


_lock = threading.Lock()
_envs: dict[tuple[int, int], _Env] = {}
_forks = 0  # how many forks lie between this process and the first: a reader that remembers another number starts afresh


def _after_fork() -> None:
    global _lock, _forks
    _lock = threading.Lock()
    _forks += 1
    for entry in _envs.values():
        entry.env.close()  # the child's own mapping and descriptor; the parent's stay
    _envs.clear()


os.register_at_fork(after_in_child=_after_fork)


def _open(path: Path) -> tuple[tuple[int, int], _Env]:
    info = path.stat()
    where = info.st_dev, info.st_ino
    with _lock:
        if where not in _envs:
            try:
                _allow_files(len(_envs))
                env = lmdb.open(
                    os.fsencode(path), subdir=False, readonly=True, create=False, lock=False, readahead=False, lib_version=0
                )
            except lmdb.Error as error:
                raise FormatError(f"{path} cannot be opened as LMDB: {error}; run fastdata verify {path.parent.parent}") from error
            _envs[where] = _Env(env)
        _envs[where].users += 1
        return where, _envs[where]


def _allow_files(held: int) -> None:
    """Each open shard holds a descriptor. Usual limits allow 1,024 where the system would allow many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if held + 64 > soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else held + 65_536, hard))


def _release(held: dict[int, tuple[tuple[int, int], _Env]], forks: int) -> None:
    if forks != _forks:
        return
    with _lock:
        for where, entry in held.values():
            entry.users -= 1
            if entry.users == 0 and _envs.pop(where, None) is not None:
                entry.env.close()


class ShardReader:
    """Random access to the records of one variant. Cheap to make; a shard is opened when first read. Pickles as its paths.

    Args:
        paths: of the shards, in order.
        counts: samples in each.
        sizes: bytes of each file, as the manifest has them: a shorter file would kill the process that maps it.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], sizes: Sequence[int]) -> None:
        self._paths, self._sizes = list(paths), list(sizes)
        self._starts = [0]
        for count in counts:
            self._starts.append(self._starts[-1] + count)
        self._reset()

    def _reset(self) -> None:
        self._held: dict[int, tuple[tuple[int, int], _Env]] = {}
        self._opening = threading.Lock()
        self._local = threading.local()  # a read transaction serves one thread
        self._forks = _forks
        self._finalizer = weakref.finalize(self, _release, self._held, _forks)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        return self._starts[-1]

    def get(self, index: int) -> memoryview:
        """The bytes of a record. The view is valid while this reader lives: decode it, or copy it, at once."""
        if self._forks != _forks:
            self._finalizer.detach()
            self._reset()
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

    def count(self, shard: int) -> int:
        """How many records LMDB finds in a shard."""
        self._begin(shard)
        return int(self._held[shard][1].env.stat()["entries"])

    def _begin(self, shard: int) -> Any:
        if not 0 <= shard < len(self._paths):
            raise IndexError(f"the index is not from 0 to {len(self) - 1}")
        path = self._paths[shard]
        with self._opening:
            if shard not in self._held:
                check_size(path, self._sizes[shard])
                self._held[shard] = _open(path)
        if not hasattr(self._local, "txns"):
            self._local.txns = {}
        txn = self._held[shard][1].env.begin(buffers=True)
        self._local.txns[shard] = txn
        return txn

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths, "_sizes": self._sizes, "_starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def check_size(path: Path, size: int) -> None:
    """Raise unless a file is there and as long as the manifest says."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy the whole store again, or prepare it again") from None
    if found != size:
        raise FormatError(
            f"{path} has {found} bytes, the manifest says {size}: it was cut short or changed; copy it again, or prepare it again"
        )
