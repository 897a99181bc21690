"""Records of a store in object storage, read from shards in a cache."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import time
import weakref
from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from fastdata.errors import FormatError, RemoteError, StoreError, lacking, warn_user
from fastdata.remote.cache import EVICTIONS, RemoteFile, ShardCache, map_number, write_whole
from fastdata.remote.client import Session
from fastdata.remote.url import Storage, is_url, local_path, parse_bytes, scheme
from fastdata.store.files import MANIFEST, FileSum, file_sum, shard_file, sum_of
from fastdata.store.manifest import Manifest, Variant, parse_manifest, read_manifest
from fastdata.store.reader import RecordIndex, ShardReader, raise_file_limit
from fastdata.store.store import StoreLocation
from fastdata.types import StrPath

TRIES = 20  # to map a shard before it is evicted again


class RemoteStore(StoreLocation):
    """A store in object storage, of which a cache holds all but the shards, and shards when they are needed.

    limit: the most bytes of shards in the cache; None: what the disk has.
    root: the folder of the store's other files; None: they are copied there now.
    """

    def __init__(self, url: str, storage: dict[str, Any], cache: StrPath, limit: int | None, root: Path | None = None) -> None:
        self.url, self.storage, self.limit, self.cache = url, storage, limit, Path(cache).absolute()
        ShardCache(self.cache)
        self._session: Session | None = None
        self.root = self._copy_tables() if root is None else root

    def _copy_tables(self) -> Path:
        """Copy all of the store but its shards into the cache, unless it is there; return its folder."""
        try:
            raw = self.session.manifest()
        except RemoteError as error:
            hint = "; prepare a store there, or publish one to it" if error.missing else ""
            raise RemoteError(f"{error}{hint}", missing=error.missing) from None
        manifest = parse_manifest(raw, f"{self.url}/{MANIFEST}")
        folder = f"{manifest.fingerprint}/{xxhash.xxh3_64_hexdigest(raw)}"
        root = self.cache / folder
        files = [RemoteFile(name, f"{folder}/{name}", total.bytes, total.xxh3_128) for name, total in manifest.files.items()]
        self.session.ask(*(file for file in files if not _has(self.cache / file.path, manifest.files[file.name])))
        if not _has(root / MANIFEST, sum_of(raw)):
            write_whole(root / MANIFEST, raw)
        return root

    @cached_property
    def shards(self) -> dict[str, list[RemoteFile]]:
        """The shards of each variant."""
        shards = dict[str, list[RemoteFile]]()
        for variant in read_manifest(self.root).variants:
            for k, total in enumerate(variant.shards):
                path = f"{self.root.parent.name}/{variant.name}/shard-{k:05d}.{total.xxh3_128}.mdb"
                file = RemoteFile(shard_file(variant.name, k), path, total.bytes, total.xxh3_128)
                shards.setdefault(variant.name, []).append(file)
        return shards

    @property
    def session(self) -> Session:
        """What asks for this store on behalf of this process."""
        if self._session is None or self._session.process != os.getpid():
            self._session = Session(self.cache, self.url, self.storage, self.limit)
        return self._session

    def __fspath__(self) -> str:
        return os.fspath(self.root)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # without secrets

    def __reduce__(self) -> Any:
        return RemoteStore, (self.url, self.storage, self.cache, self.limit, self.root)

    def reader(self, variant: Variant, index: RecordIndex, *, check: bool) -> CachedReader:
        return CachedReader(index, CachedShards(self, variant.name), check=check)

    def require(self, manifest: Manifest, variant: Variant) -> None:
        need = sum(total.bytes for total in variant.shards)
        if self.limit is not None and need > self.limit:
            raise StoreError(
                f"cache_size is {self.limit}, but {self.url} is read as a whole and takes {need} bytes: "
                f"give cache_size={need} or more"
            )

    def check(self, variant: Variant, shard: int) -> None:
        shards = CachedShards(self, variant.name)
        shards.path(shard).unlink(missing_ok=True)  # what is in a cache says nothing of the bucket
        shards.open(shard).release()
        shards.path(shard).unlink(missing_ok=True)


_readers = weakref.WeakSet["CachedReader"]()


def _unmap_all() -> None:
    for reader in list(_readers):
        reader.unmap()


os.register_at_fork(after_in_child=_unmap_all)  # the lock of a mapping lives as long as any process has it


def _has(path: Path, total: FileSum) -> bool:
    """Return whether the cache has a file. One that is not what was written is removed."""
    try:
        if file_sum(path) == total:
            return True
    except FileNotFoundError:
        return False
    except OSError:
        pass
    _remove(path)
    return False


def _remove(path: Path) -> None:
    """Remove a file that is not what was written, unless another process has."""
    try:
        path.unlink()
        warn_user(f"{path} is not what was written there: it is fetched again; see whether the disk is healthy")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FormatError(f"{path} is not what was written there, and cannot be removed ({error.strerror}): delete it") from None


class CachedShards:
    """The shards of a variant, which come into the cache when they are opened."""

    def __init__(self, store: RemoteStore, variant: str) -> None:
        self.store, self._variant = store, variant

    def path(self, shard: int) -> Path:
        """Return where a shard lies in the cache."""
        return self.store.cache / self.store.shards[self._variant][shard].path

    def describe(self, shard: int) -> str:
        return f"{self.store.url}/{self.store.shards[self._variant][shard].name}"

    def advice(self, shard: int) -> str:
        return (
            f"remove {self.path(shard)}, a copy in the cache, to have it fetched again; if that does not help, "
            f"run fastdata verify {self.store.url}"
        )

    def open(self, shard: int) -> memoryview:
        """Map a shard, and lock its file shared. One that is not what was written is removed, and fetched again."""
        raise_file_limit()
        file = self.store.shards[self._variant][shard]
        path = self.store.cache / file.path
        for _ in range(TRIES):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                _unmap_all()  # or the cache may have no room, while this process waits
                self.store.session.ask(file)
                continue
            except OSError as error:
                raise StoreError(f"{path} cannot be opened: {lacking(error) or error.strerror}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                info = os.fstat(descriptor)
                if info.st_nlink and stat.S_ISREG(info.st_mode) and info.st_size == file.bytes:
                    mapped = mmap.mmap(descriptor, file.bytes, prot=mmap.PROT_READ)  # has a descriptor, and its lock, of its own
                    mapped.madvise(mmap.MADV_RANDOM)
                    os.utime(descriptor, ns=(time.time_ns(), info.st_mtime_ns))
                    return memoryview(mapped)
            finally:
                os.close(descriptor)
            if info.st_nlink:
                _remove(path)
        raise StoreError(f"{path} was evicted {TRIES} times before it was read: make cache_size larger")


class CachedReader(ShardReader):
    """Random access to the records of one variant of a remote store. A shard is fetched when it is first read."""

    def __init__(self, index: RecordIndex, shards: CachedShards, *, check: bool = False) -> None:
        super().__init__(index, shards, check=check)
        self._evictions = map_number(shards.store.cache / EVICTIONS)
        self._seen = self._evictions[0]
        _readers.add(self)

    def unmap(self) -> None:
        """Unmap all shards; those of which there are views stay until these are gone."""
        self._opened = {}

    def get(self, row: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held."""
        if self._evictions[0] != self._seen:
            self._seen = self._evictions[0]
            self._opened = {shard: view for shard, view in self._opened.items() if self._shards.path(shard).exists()}
        try:
            return super().get(row)
        except FormatError:
            pass
        shard = bisect_right(self._starts, row) - 1
        self._opened.pop(shard, None)
        _remove(self._shards.path(shard))
        return super().get(row)


def locate(
    path: StrPath,
    cache: StrPath | None = None,
    cache_size: int | str | None = None,
    storage: Storage | None = None,
) -> StrPath:
    """Return a path of a store's files: what was given, or for a URL a RemoteStore.

    Args:
        cache: the folder for shards; None: the environment's FASTDATA_CACHE.
        cache_size: the most bytes of shards in it, such as "200GB"; None: FASTDATA_CACHE_SIZE, or what the disk has.
        storage: options of the client: endpoint, region, anonymous and others.
    """
    given = {"cache": cache, "cache_size": cache_size, "storage": storage}
    if not is_url(path):
        extra = [name for name, value in given.items() if value is not None]
        if extra and isinstance(path, str | Path):
            raise ValueError(f"{extra[0]} goes with a URL, such as s3://bucket/photos.fds, but {os.fspath(path)} is a folder")
        return path
    url = str(path)
    folder = cache if cache is not None else os.environ.get("FASTDATA_CACHE")
    if folder is None and scheme(url) == "file":
        return local_path(url)
    if folder is None:
        raise ValueError(f"{url} is read through a cache: give cache=FOLDER, on a local disk, or set FASTDATA_CACHE")
    size = cache_size if cache_size is not None else os.environ.get("FASTDATA_CACHE_SIZE")
    limit = None if size is None else parse_bytes(size, "cache_size")
    return RemoteStore(url, dict(storage or {}), folder, limit)
