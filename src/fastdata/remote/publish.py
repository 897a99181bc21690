"""Copies a finished store into object storage. The manifest is written last, so that there is a whole store or none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastdata.errors import RemoteError
from fastdata.remote.bucket import Bucket, Storage, is_url
from fastdata.store.files import MANIFEST, check_sum, shard_file
from fastdata.store.manifest import Manifest, parse_manifest
from fastdata.store.store import Store
from fastdata.types import StrPath

REQUESTS = 8  # in flight


def publish(store: StrPath, url: str, *, storage: Storage | None = None, tick: Callable[[int], None] = lambda size: None) -> None:
    """Copy a finished store to a URL, from which datasets read it through a cache.

    No other store is overwritten; an interrupted copy begins anew.

    Args:
        storage: options of the client: endpoint, region, and others; what is missing comes from the environment.
        tick: called with the size of each copied file.

    Raises:
        StoreError: there is no such store, or it is damaged.
        RemoteError: the URL cannot be written, or holds another store.
        MissingExtraError: obstore is not installed.
        ValueError: `url` is no URL.
    """
    if not is_url(url):
        raise ValueError(f"{url} is not a URL, such as s3://bucket/photos.fds; to copy a store to a folder, use cp -r")
    opened = Store(store, kind=None)
    manifest, bucket = opened.manifest, Bucket(url, storage or {})
    files = {shard_file(v.name, k): total for v in manifest.variants for k, total in enumerate(v.shards)} | manifest.files

    def send(name: str) -> int:
        path, total = opened.path / name, files[name]
        check_sum(path, total)
        bucket.put(name, path)
        return total.bytes

    if (found := published(bucket)) and found.xxh3_128 != manifest.xxh3_128:
        raise RemoteError(f"{url} holds another store: give a URL where nothing is, or delete what is there")
    with ThreadPoolExecutor(REQUESTS) as pool:
        for size in pool.map(send, files):
            tick(size)
    bucket.put(MANIFEST, manifest.to_json())


def published(bucket: Bucket) -> Manifest | None:
    """Return the manifest of the store in a bucket, or None if there is no such object."""
    try:
        return parse_manifest(bucket.read(MANIFEST, twice=True), f"{bucket.url}/{MANIFEST}")
    except RemoteError as error:
        if error.missing:
            return None
        raise
