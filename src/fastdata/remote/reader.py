"""Records of a remote store, read from shards in a cache or in memory."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import weakref
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, StoreError, lacking, warn_user
from fastdata.machine import available_cores
from fastdata.remote.cache import Turn, place_bytes, places_at, seal_of, shard_name
from fastdata.remote.client import ask
from fastdata.store.files import shard_file
from fastdata.store.format import Manifest, Variant
from fastdata.store.place import Place
from fastdata.store.reader import RecordIndex, ShardReader, raise_file_limit

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

    def reader(self, variant: Variant, index: RecordIndex, *, check: bool) -> CachedReader:
        return CachedReader(self, index, _Shards(self, variant, index), check=check)

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


def _mapped(descriptor: int, size: int, xxh3: str, records: int) -> memoryview | None:
    """Map the file of a shard; None: it is another one, or damaged."""
    info, whole = os.fstat(descriptor), place_bytes(size, records)
    if not stat.S_ISREG(info.st_mode) or info.st_size != whole:
        return None
    mapped = mmap.mmap(descriptor, whole, prot=mmap.PROT_READ)  # has a descriptor, and its lock, of its own
    mapped.madvise(mmap.MADV_RANDOM)
    view = memoryview(mapped)
    return view if seal_of(view[places_at(size) : -16], xxh3) == mapped[-16:] else None


class _Shards:
    """The shards of a variant, which come into the cache, or into memory, when they are opened."""

    def __init__(self, mirror: Mirror, variant: Variant, index: RecordIndex) -> None:
        self._mirror = mirror
        self._variant = variant.name
        self._files = [
            (total.bytes, total.xxh3_128, b - a) for total, (a, b) in zip(variant.shards, pairwise(index.starts), strict=True)
        ]

    def open(self, shard: int) -> memoryview:
        raise_file_limit()
        try:
            return self._in_memory(shard) if self._mirror.in_memory else self._in_cache(shard)
        except OSError as error:
            raise StoreError(f"{self.file(shard)} cannot be opened: {lacking(error) or error.strerror}") from error

    def file(self, shard: int) -> Path:
        """Return where a shard lies in the cache."""
        return self._mirror.root.parent / self._variant / shard_name(shard, self._files[shard][1])

    def describe(self, shard: int) -> str:
        return f"{self._mirror.url}/{shard_file(self._variant, shard)}"

    def advice(self, shard: int) -> str:
        verify = f"run fastdata verify {self._mirror.url}"
        if self._mirror.in_memory:
            return verify
        return f"remove {self.file(shard)}, a copy in the cache, to have it fetched again; if that does not help, {verify}"

    def ask(self, what: str, **more: Any) -> Any:
        """Ask the fetcher about this variant."""
        return self._mirror.ask(what, variant=self._variant, **more)

    def _in_memory(self, shard: int) -> memoryview:
        descriptor = self.ask("take", shard=shard).descriptor
        try:
            view = _mapped(descriptor, *self._files[shard])
        finally:
            os.close(descriptor)
        assert view is not None
        return view

    def _in_cache(self, shard: int) -> memoryview:
        """Map a shard in the cache, with a shared lock. One that is not what was written is removed, and fetched again."""
        path = self.file(shard)
        for _ in range(TRIES):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                for reader in list(_readers):
                    reader.let_go()  # or the cache may have no room, while this process waits
                self.ask("take", shard=shard)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                info = os.fstat(descriptor)
                view = _mapped(descriptor, *self._files[shard]) if info.st_nlink else None
                if view is not None:
                    os.utime(descriptor)
                    return view
            finally:
                os.close(descriptor)
            if info.st_nlink:
                _remove(path, info)
        raise StoreError(
            f"{self._mirror.url}: shard {shard} of {self._variant} was evicted {TRIES} times before it was read: "
            "make cache_size larger"
        )


class CachedReader(ShardReader):
    """Random access to the records of one variant of a remote store. Shards are fetched when they are first read."""

    def __init__(self, mirror: Mirror, index: RecordIndex, shards: _Shards, *, check: bool = False) -> None:
        super().__init__(index, shards, check=check)
        self._mirror, self._cached = mirror, shards
        try:
            self._turn = Turn(mirror.cache).value
        except OSError as error:
            raise StoreError(f"the cache {mirror.cache} cannot be used: {lacking(error) or error.strerror}") from None
        self._seen = self._turn[0]
        self._single: dict[int, memoryview] = {}
        self._most = 3 + AT_ONCE * available_cores() // max(min(b - a for a, b in pairwise(index.starts)), 1)
        _readers.add(self)

    def __reduce__(self) -> Any:
        return partial(CachedReader, check=self._check), (self._mirror, self._index, self._cached)

    def let_go(self) -> None:
        """Unmap all shards; those of which there are views stay until these are gone."""
        self._opened = {}

    def get(self, row: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held."""
        if self._turn[0] != self._seen:
            self._seen = self._turn[0]
            self.let_go()  # so that the fetcher can evict some
        if (single := self._single.get(row)) is not None:
            return single
        return super().get(row)

    def expect(self, rows: Array) -> None:
        """Fetch those of some records whose shards are not in the cache: the first batches need not wait for whole shards."""
        self._single = {}
        if self._mirror.in_memory:
            return
        shards = np.searchsorted(self._starts, rows, "right") - 1
        missing = [
            shard for shard in np.unique(shards).tolist() if shard not in self._opened and not self._cached.file(shard).exists()
        ]
        if not missing:
            return
        wanted = [(shard, np.unique(rows[shards == shard]).tolist()) for shard in missing]
        local = [(shard, [row - self._starts[shard] for row in some]) for shard, some in wanted]
        found = self._cached.ask("records", records=local)
        if found.body["lengths"] is None:
            return
        data, start = memoryview(found.data), 0
        for (_, some), lengths in zip(wanted, found.body["lengths"], strict=True):
            for row, length in zip(some, lengths, strict=True):
                self._single[row] = data[start : start + length]
                start += length

    def _open(self, shard: int) -> memoryview:
        view = super()._open(shard)
        while self._mirror.in_memory and len(self._opened) > self._most:
            self._opened.pop(next(iter(self._opened)))
        return view


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
