"""What a fetcher knows of a store: where it is, its manifest, and how a part of it is fetched and checked."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import FormatError, RemoteError, StoreError
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import place_bytes, places_at, seal_of, shard_name
from fastdata.store.files import MANIFEST, FileSum, file_sum, shard_file, sum_of, write_atomic
from fastdata.store.format import Manifest, Variant, read_manifest
from fastdata.store.reader import RecordIndex
from fastdata.store.store import Store

__all__ = ["TRIES", "RemoteStore", "TablesOnly", "fetch", "mirror"]

Array = np.ndarray[Any, np.dtype[Any]]

TRIES = 4  # to get bytes with the right checksum


def mirror(bucket: Bucket, folder: Path, pool: Executor, files: Executor) -> RemoteStore:
    """Copy all of a store but its shards into a cache, unless it is there; return the store.

    Args:
        pool, files: threads for requests, and for files.
    """
    try:
        raw = bucket.read_twice(MANIFEST, pool)
    except RemoteError as error:
        if error.missing:
            raise RemoteError(f"no store at {bucket.url}: {error}; prepare one there, or publish one to it", missing=True) from None
        raise
    try:
        body = json.loads(raw)
        fingerprint = body["fingerprint"] if body["format"] == "fastdata" else ""
        sums = {name: FileSum(found["bytes"], found["xxh3_128"]) for name, found in body["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{bucket.url}/{MANIFEST} is not the manifest of a store") from None
    names = r"[\w.-]+(/[\w.-]+)?"
    if not (isinstance(fingerprint, str) and re.fullmatch(r"[0-9a-f]{8,64}", fingerprint)) or not all(
        re.fullmatch(names, name) and ".." not in name for name in sums
    ):
        raise FormatError(f"{bucket.url}/{MANIFEST} is damaged: its fingerprint or the names of its files are wrong")
    root = folder / fingerprint / xxhash.xxh3_64_hexdigest(raw)
    missing = [name for name, total in sums.items() if not _has(root / name, total)]
    list(files.map(lambda name: _fetch_file(bucket, name, sums[name], root / name, pool), missing))
    if not _has(root / MANIFEST, sum_of(raw)):
        root.mkdir(parents=True, exist_ok=True)
        write_atomic(root / MANIFEST, raw, durable=False)
    read_manifest(root)
    return RemoteStore(bucket, root)


def _has(path: Path, total: FileSum) -> bool:
    """Return whether a file in the cache is what was written."""
    try:
        return file_sum(path) == total
    except OSError:
        return False


def _fetch_file(bucket: Bucket, name: str, total: FileSum, path: Path, pool: Executor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
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
    digest = bucket.download(name, total.bytes, descriptor, pool)
    for _ in range(TRIES - 1):
        if digest == total.xxh3_128:
            return
        digest = bucket.mend(name, total.bytes, descriptor, pool)
    if digest != total.xxh3_128:
        raise RemoteError(
            f"{bucket.url}/{name} came {TRIES} times with another checksum than the manifest says: the object is damaged, or was "
            "replaced; publish the store again"
        )


@dataclass(frozen=True)
class RemoteStore:
    """A store in a bucket, of which `root` holds all but the shards."""

    bucket: Bucket
    root: Path

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.root)

    @cached_property
    def store(self) -> Store:
        return TablesOnly(self.root, kind=None)

    @cached_property
    def variants(self) -> dict[str, Variant]:
        return {variant.name: variant for variant in self.manifest.variants}

    def file(self, variant: str, shard: int) -> Path:
        """Return where a shard lies in the cache."""
        return self.root.parent / variant / shard_name(shard, self.variants[variant].shards[shard].xxh3_128)

    def file_bytes(self, variant: str, shard: int) -> int:
        """Return the bytes that a shard takes in the cache."""
        found = self.variants[variant]
        return place_bytes(found.shards[shard].bytes, self.manifest.shard_records(found)[shard])

    def fill(self, variant: str, shard: int, descriptor: int, pool: Executor) -> None:
        """Fetch a shard into a file, check it, and write the places of its records and the seal after it."""
        found = self.variants[variant]
        total = found.shards[shard]
        fetch(self.bucket, shard_file(variant, shard), total, descriptor, pool)
        index = self.store.index(found)
        rows = slice(*index.starts[shard : shard + 2])
        places = np.stack([index.offsets[rows], index.lengths[rows].astype("<u8")], axis=1).tobytes()
        places += seal_of(places, total.xxh3_128)
        if os.pwrite(descriptor, places, places_at(total.bytes)) != len(places):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rows(self, variant: str, shard: int, wanted: Sequence[int]) -> tuple[RecordIndex, Array]:
        """Return the index of a variant, and the rows in it of some records of a shard, int64 [n]."""
        index = self.store.index(self.variants[variant])
        return index, index.starts[shard] + np.asarray(wanted, np.int64)

    def lengths(self, variant: str, shard: int, wanted: Sequence[int]) -> int:
        """Return the bytes of some records."""
        index, rows = self._rows(variant, shard, wanted)
        return int(index.lengths[rows].sum())

    def records(self, variant: str, shard: int, wanted: Sequence[int]) -> list[bytes]:
        """Fetch single records of a shard, given by their numbers in it.

        Raises:
            RemoteError: they cannot be fetched, or a checksum stays wrong.
        """
        index, rows = self._rows(variant, shard, wanted)
        starts, lengths, sums = index.offsets[rows].astype(np.int64), index.lengths[rows], index.checksums[rows]
        name = shard_file(variant, shard)
        found: list[bytes | None] = [None] * len(rows)
        for _ in range(TRIES):
            left = [k for k, record in enumerate(found) if record is None]
            if not left:
                break
            came = self.bucket.read_ranges(name, starts[left].tolist(), lengths[left].tolist())
            for k, record in zip(left, came, strict=True):
                if xxhash.xxh3_64_intdigest(record) == int(sums[k]):
                    found[k] = bytes(record)
        if any(record is None for record in found):
            row = int(rows[[record is None for record in found].index(True)])
            raise RemoteError(
                f"record {row} of {self.bucket.url}/{name} came {TRIES} times with another checksum than the store says: "
                "the object is damaged, or was replaced; publish the store again"
            )
        return [record for record in found if record is not None]


class TablesOnly(Store):
    """The tables of a store, whose shards are elsewhere."""

    def _check_sizes(self) -> None:
        pass
