"""Records of a remote store, read from shards in a cache or in memory."""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import stat
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, StoreError, lacking, warn_user
from fastdata.machine import available_cores
from fastdata.remote.cache import Turn, place_bytes, places_at, seal_of, shard_name
from fastdata.remote.client import ask
from fastdata.store.files import offsets_file
from fastdata.store.format import Manifest, Variant
from fastdata.store.place import Place
from fastdata.store.shards import allow_files

__all__ = ["CachedReader", "Mirror"]

Array = np.ndarray[Any, np.dtype[Any]]

TRIES = 20  # to map a shard before it is evicted again
AT_ONCE = 64  # records that each core may read at a time into memory


@dataclass(frozen=True)
class Mirror(Place):
    """A remote store, of which a cache holds all but the shards, and shards when they are needed.

    Attributes:
        url: of the store.
        storage: options of the client.
        cache: the folder.
        limit: bytes of all shards in the cache; None: what the disk has.
        in_memory: shards are not written to the cache.
        root: the folder of the store's other files.
    """

    url: str
    storage: dict[str, Any]
    cache: Path
    limit: int | None
    in_memory: bool
    root: Path

    def __fspath__(self) -> str:
        return os.fspath(self.root)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"Mirror({self.url!r})"  # without secrets

    def __hash__(self) -> int:
        return hash(self.root)

    def reader(self, manifest: Manifest, variant: Variant) -> CachedReader:
        return CachedReader(self, manifest, variant)

    def require(self, manifest: Manifest, variant: Variant) -> None:
        sizes = zip(variant.shards, manifest.shard_records(variant), strict=True)
        need = sum(place_bytes(total.bytes, records) for total, records in sizes)
        if self.limit is not None and need > self.limit:
            raise StoreError(
                f"cache_size is {self.limit}, but {self.url} is read as a whole and takes {need} bytes: "
                f"give cache_size={need} or more"
            )

    def check(self, variant: Variant, shard: int) -> None:
        found = replace(self, in_memory=True).ask("take", variant=variant.name, shard=shard)
        os.close(found.descriptor)

    def ask(self, what: str, **more: Any) -> Any:
        """Ask the fetcher about this store."""
        own = {
            "url": self.url,
            "storage": self.storage,
            "limit": self.limit,
            "memory": self.in_memory,
            "root": os.fspath(self.root),
        }
        return ask(self.cache, {"ask": what, **own, **more})


_readers = weakref.WeakSet["CachedReader"]()


def _after_fork() -> None:
    """Let go of what a child inherits: the lock of a mapping lives as long as any process has it."""
    for reader in list(_readers):
        reader.let_go()


os.register_at_fork(after_in_child=_after_fork)


class _Shard:
    """A shard that this process maps. Its views keep the mapping, so one can let go of it at any time."""

    def __init__(self, mapped: mmap.mmap, size: int, records: int) -> None:
        mapped.madvise(mmap.MADV_RANDOM)
        self.view = memoryview(mapped)
        table = np.frombuffer(mapped, "<u8", 2 * records, places_at(size)).reshape(-1, 2)
        self.starts: Array = table[:, 0]
        self.lengths: Array = table[:, 1]

    @classmethod
    def of(cls, descriptor: int, size: int, xxh3: str, records: int) -> _Shard | None:
        """Map the file of a shard; None: it is another one, or damaged."""
        info, whole = os.fstat(descriptor), place_bytes(size, records)
        if not stat.S_ISREG(info.st_mode) or info.st_size != whole:
            return None
        mapped = mmap.mmap(descriptor, whole, prot=mmap.PROT_READ)  # has a descriptor, and its lock, of its own
        places = memoryview(mapped)[places_at(size) : -16]
        return cls(mapped, size, records) if seal_of(places, xxh3) == mapped[-16:] else None

    def get(self, record: int) -> memoryview:
        start = int(self.starts[record])
        return self.view[start : start + int(self.lengths[record])]


class CachedReader:
    """Random access to the records of one variant of a remote store. Pickling keeps only where they are.

    A shard that is not in the cache is fetched when it is first read.
    """

    def __init__(self, mirror: Mirror, manifest: Manifest, variant: Variant) -> None:
        self._mirror = mirror
        self._variant = variant.name
        self._sums = [(total.bytes, total.xxh3_128) for total in variant.shards]
        self._counts = list(manifest.shard_records(variant))
        self._starts = [0, *accumulate(self._counts)]
        self._reset()

    def _reset(self) -> None:
        self.let_go()
        try:
            self._turn = Turn(self._mirror.cache).value
        except OSError as error:
            raise StoreError(f"the cache {self._mirror.cache} cannot be used: {lacking(error) or error.strerror}") from None
        self._seen = self._turn[0]
        self._single: dict[int, memoryview] = {}

        _readers.add(self)

    def let_go(self) -> None:
        """Unmap all shards; those of which there are views stay until these are gone."""
        self._opened = OrderedDict[int, _Shard]()

    def __len__(self) -> int:
        return self._starts[-1]

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held."""
        if self._turn[0] != self._seen:
            self._seen = self._turn[0]
            self.let_go()  # so that the fetcher can evict some
        if (single := self._single.get(index)) is not None:
            return single
        shard = bisect.bisect_right(self._starts, index) - 1
        opened = self._opened.get(shard)
        if opened is None:
            opened = self._open(shard)
        return opened.get(index - self._starts[shard])

    def expect(self, indices: Array) -> None:
        """Fetch those of some records whose shards are not in the cache: the first batches need not wait for whole shards."""
        self._single = {}
        if self._mirror.in_memory:
            return
        shards = np.searchsorted(self._starts, indices, "right") - 1
        missing = [shard for shard in np.unique(shards).tolist() if shard not in self._opened and not self._file(shard).exists()]
        if not missing:
            return
        wanted = [(shard, np.unique(indices[shards == shard]).tolist()) for shard in missing]
        local = [(shard, [index - self._starts[shard] for index in some]) for shard, some in wanted]
        found = self._mirror.ask("records", variant=self._variant, records=local)
        if found.body["lengths"] is None:
            return
        data, start = memoryview(found.data), 0
        for (_, some), lengths in zip(wanted, found.body["lengths"], strict=True):
            for index, length in zip(some, lengths, strict=True):
                self._single[index] = data[start : start + length]
                start += length

    def copy_of(self, index: int) -> Path | None:
        """Return the file in the cache that a record was read from; None: it is not from one."""
        shard = bisect.bisect_right(self._starts, index) - 1
        return None if self._mirror.in_memory or index in self._single else self._file(shard)

    def _file(self, shard: int) -> Path:
        """Return where a shard lies in the cache."""
        return self._mirror.root.parent / self._variant / shard_name(shard, self._sums[shard][1])

    def lengths(self) -> Array:
        """Return the bytes of each record, int64 [n]."""
        table = self._mirror.root / offsets_file(self._variant)
        if table.is_file():
            return np.asarray(np.load(table)[:, 1], np.int64)
        return np.array([len(self.get(k)) for k in range(len(self))], np.int64)

    def _open(self, shard: int) -> _Shard:
        if not 0 <= shard < len(self._sums):
            raise IndexError(f"the index is not from 0 to {len(self) - 1}")
        allow_files(len(self._opened))
        try:
            opened = self._in_memory(shard) if self._mirror.in_memory else self._in_cache(shard)
        except OSError as error:
            raise StoreError(f"{self._file(shard)} cannot be opened: {lacking(error) or error.strerror}") from error
        self._opened[shard] = opened
        if self._mirror.in_memory:
            most = 3 + AT_ONCE * available_cores() // max(min(self._counts), 1)
            while len(self._opened) > most:
                self._opened.popitem(last=False)
        return opened

    def _in_memory(self, shard: int) -> _Shard:
        descriptor = self._mirror.ask("take", variant=self._variant, shard=shard).descriptor
        try:
            opened = _Shard.of(descriptor, *self._sums[shard], self._counts[shard])
        finally:
            os.close(descriptor)
        assert opened is not None
        return opened

    def _in_cache(self, shard: int) -> _Shard:
        """Map a shard in the cache, with a shared lock. One that is not what was written is removed, and fetched again."""
        path = self._file(shard)
        for _ in range(TRIES):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                for reader in list(_readers):
                    reader.let_go()  # or the cache may have no room, while this process waits
                self._mirror.ask("take", variant=self._variant, shard=shard)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                info = os.fstat(descriptor)
                opened = _Shard.of(descriptor, *self._sums[shard], self._counts[shard]) if info.st_nlink else None
                if opened is not None:
                    os.utime(descriptor)
                    return opened
            finally:
                os.close(descriptor)
            if info.st_nlink:
                _remove(path, info)
        raise StoreError(
            f"{self._mirror.url}: shard {shard} of {self._variant} was evicted {TRIES} times before it was read: "
            "make cache_size larger"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_mirror", "_variant", "_sums", "_counts", "_starts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def _remove(path: Path, damaged: os.stat_result) -> None:
    """Remove a file from the cache, unless another process has."""
    try:
        if os.path.samestat(path.stat(), damaged):
            path.unlink()
            warn_user(f"{path} is not what was written there: it is fetched again; see whether the disk is healthy")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FormatError(f"{path} is not what was written there, and cannot be removed ({error.strerror}): delete it") from None
