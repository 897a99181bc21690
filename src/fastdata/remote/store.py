"""A store in object storage as its downloader sees it: its tables are copied into a cache, and its shards when they are needed."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import Executor
from functools import cached_property
from pathlib import Path

import xxhash

from fastdata.errors import RemoteError, StoreError
from fastdata.remote.bucket import Bucket
from fastdata.store.files import MANIFEST, FileSum, file_sum, sum_of, unique, write_atomic
from fastdata.store.manifest import Variant, parse_manifest, read_manifest

__all__ = ["TRIES", "Origin", "copy_tables", "fetch"]

TRIES = 6  # to get bytes with the right checksum


class Origin:
    """A store in a bucket, and the folder in a cache that has all of it but the shards."""

    def __init__(self, bucket: Bucket, root: Path) -> None:
        self.bucket = bucket
        self.root = root

    @cached_property
    def variants(self) -> dict[str, Variant]:
        return {variant.name: variant for variant in read_manifest(self.root).variants}


def copy_tables(bucket: Bucket, folder: Path, pool: Executor, files: Executor) -> Path:
    """Copy all of a store but its shards into a cache, unless it is there; return the folder that has it.

    Raises:
        RemoteError: there is no store, or it cannot be fetched.
        FormatError: it is damaged.
    """
    try:
        raw = bucket.read_twice(MANIFEST, pool)
    except RemoteError as error:
        if error.missing:
            raise RemoteError(f"no store at {bucket.url}: {error}; prepare one there, or publish one to it", missing=True) from None
        raise
    manifest = parse_manifest(raw, f"{bucket.url}/{MANIFEST}")
    root, sums = folder / manifest.fingerprint / xxhash.xxh3_64_hexdigest(raw), manifest.files
    missing = [name for name, total in sums.items() if not _has(root / name, total)]
    list(files.map(lambda name: _copy(bucket, name, sums[name], root / name, pool), missing))
    if not _has(root / MANIFEST, sum_of(raw)):
        root.mkdir(parents=True, exist_ok=True)
        write_atomic(root / MANIFEST, raw, durable=False)
    return root


def _has(path: Path, total: FileSum) -> bool:
    """Return whether a file in the cache is what was written."""
    try:
        return file_sum(path) == total
    except OSError:
        return False


def _copy(bucket: Bucket, name: str, total: FileSum, path: Path, pool: Executor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{unique()}.tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # or another downloader would remove it
        fetch(bucket, name, total, descriptor, pool)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def fetch(bucket: Bucket, name: str, total: FileSum, descriptor: int, pool: Executor) -> None:
    """Fetch an object into a file, and compare its checksum.

    Raises:
        RemoteError: it cannot be fetched, or its checksum stays wrong.
    """
    for _ in range(TRIES):
        if bucket.download(name, total.bytes, descriptor, pool) == total.xxh3_128:
            return
    raise RemoteError(
        f"{bucket.url}/{name} came {TRIES} times with another checksum than the manifest says: the object is damaged, or was "
        "replaced; publish the store again"
    )
