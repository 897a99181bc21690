"""Copies a finished store into object storage. The manifest is written last, so that there is a whole store or none."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata import errors
from fastdata.errors import FormatError, RemoteError, StoreError
from fastdata.remote.bucket import Bucket
from fastdata.remote.places import record_places
from fastdata.remote.url import Storage, is_url
from fastdata.store.files import MANIFEST, FileSum, file_sum, offsets_file, shard_file
from fastdata.store.format import WITH_MORE, Manifest, Variant
from fastdata.store.store import Store

__all__ = ["main", "publish"]

START = "from fastdata.remote.publish import main; main()"
REQUESTS = 8


def publish(
    store: str | os.PathLike[str], url: str, *, storage: Storage | None = None, tick: Callable[[int], None] = lambda size: None
) -> None:
    """Copy a finished store to a URL, from which datasets read it through a cache.

    Files that are there already with the same bytes are kept, so an interrupted copy is continued. Nothing is overwritten. The copy
    has one more file for each variant, `offsets.npy`, with which single records can be read.

    Args:
        store: the folder of a finished store. Of one that has grown, the newest version is copied; `photos.fds/version-1`
            is the first.
        url: such as s3://bucket/photos.fds.
        storage: options of the client: endpoint, region, and others; what is missing comes from the environment.
        tick: called with the bytes of each file that is there.

    Raises:
        StoreError: there is no such store, it is damaged, or it is a subset, which has no shards of its own.
        RemoteError: the URL cannot be written, or holds another store.
        MissingExtraError: obstore is not installed.
        ValueError: this is no URL.
    """
    if not is_url(url):
        raise ValueError(f"{url} is no URL, such as s3://bucket/photos.fds; copy a store to a folder with cp -r")
    opened = Store(store, kind=None)
    if opened.rows is not None:
        raise StoreError(
            f"{opened.path} is a subset of the shards in {opened.shards}: publish that store, and choose samples as you read it"
        )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    asked = json.dumps({"store": os.fspath(opened.path), "url": url, "storage": dict(storage or {})})
    with subprocess.Popen(
        [sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(asked)
        child.stdin.close()
        for line in child.stdout:
            found = json.loads(line)
            if "error" in found:
                raise getattr(errors, found["error"], StoreError)(found["message"])
            tick(found["bytes"])
    if child.returncode:
        raise RemoteError(f"the process that copied to {url} ended with status {child.returncode}; run it again to continue")


def main() -> None:
    """Copy what standard input asks for, in a process of its own: one that has used obstore must not fork."""
    asked = json.load(sys.stdin)
    try:
        _publish(Path(asked["store"]), asked["url"], asked["storage"])
    except errors.FastDataError as error:
        _say(error=type(error).__name__, message=str(error))


def _say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _publish(root: Path, url: str, storage: Mapping[str, Any]) -> None:
    store = Store(root, kind=None)
    manifest = store.manifest
    bucket = Bucket(url, storage, create=True)
    _check_free(bucket, manifest)
    with ThreadPoolExecutor(REQUESTS) as pool:
        shards = [(store.shard(v, k), shard_file(v.name, k), total) for v in manifest.variants for k, total in enumerate(v.shards)]
        others = [(root / name, name, total) for name, total in manifest.files.items()]
        for total in pool.map(lambda each: _put_file(bucket, store, *each), [*shards, *others]):
            _say(bytes=total.bytes)
        tables = dict(pool.map(lambda variant: _put_offsets(bucket, store, variant), manifest.variants))
    body = json.loads(replace(manifest, shards_in="").to_json())
    body["version"] = WITH_MORE
    body["files"] |= {name: {"bytes": total.bytes, "xxh3_128": total.xxh3_128} for name, total in tables.items()}
    _put(bucket, MANIFEST, json.dumps(body, indent=1, sort_keys=True).encode() + b"\n")


def _check_free(bucket: Bucket, manifest: Manifest) -> None:
    """Raise an error if another store is there."""
    try:
        found = json.loads(bucket.read(MANIFEST)).get("fingerprint")
    except RemoteError as error:
        if error.missing:
            return
        raise
    except (ValueError, AttributeError):
        found = None
    if found != manifest.fingerprint:
        raise RemoteError(f"{bucket.url} holds another store: give a URL where nothing is, or delete what is there")


def _put_file(bucket: Bucket, store: Store, path: Path, name: str, total: FileSum) -> FileSum:
    try:
        found = file_sum(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if found != total:
        raise FormatError(f"{path} is not what was written: its checksum differs; run fastdata verify {store.path}")
    if not bucket.put(name, path):
        _check_same(bucket, name, total)
    return total


def _put_offsets(bucket: Bucket, store: Store, variant: Variant) -> tuple[str, FileSum]:
    counts = store.manifest.shard_records(variant)
    tables = [record_places(store.shard(variant, k), count) for k, count in enumerate(counts)]
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([np.empty((0, 2), np.uint64), *tables]).astype("<u8"))
    name = offsets_file(variant.name)
    return name, _put(bucket, name, buffer.getvalue())


def _put(bucket: Bucket, name: str, data: bytes) -> FileSum:
    total = FileSum(len(data), xxhash.xxh3_128_hexdigest(data))
    if not bucket.put(name, data):
        _check_same(bucket, name, total)
    return total


def _check_same(bucket: Bucket, name: str, total: FileSum) -> None:
    """Raise an error unless an object has these bytes."""
    size = bucket.size(name)
    digest = xxhash.xxh3_128()
    for start in range(0, size if size == total.bytes else 0, 16 << 20):
        digest.update(bucket.read_range(name, start, min(16 << 20, size - start)))
    if (size, digest.hexdigest()) != (total.bytes, total.xxh3_128):
        raise RemoteError(
            f"{bucket.url}/{name} exists and is of another store: give a URL where nothing is, or delete what is there"
        )
