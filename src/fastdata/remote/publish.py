"""Copies a finished store into object storage. The manifest is written last, so that there is a whole store or none."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, RemoteError
from fastdata.remote.agent import REQUESTS, Agent
from fastdata.remote.places import record_places
from fastdata.remote.url import Storage, is_url
from fastdata.store.files import MANIFEST, FileSum, offsets_file, shard_file, sum_of
from fastdata.store.format import WITH_MORE, Manifest, Variant
from fastdata.store.store import Store

__all__ = ["offsets_table", "publish", "published_manifest"]

Array = np.ndarray[Any, np.dtype[Any]]


def publish(
    store: str | os.PathLike[str], url: str, *, storage: Storage | None = None, tick: Callable[[int], None] = lambda size: None
) -> None:
    """Copy a finished store to a URL, from which datasets read it through a cache.

    Files that are there already with the same bytes are kept, so an interrupted copy is continued. Nothing is overwritten. The copy
    has one more file for each variant, `offsets.npy`, with which single records can be read.

    Args:
        store: the folder of a finished store.
        url: such as s3://bucket/photos.fds.
        storage: options of the client: endpoint, region, and others; what is missing comes from the environment.
        tick: called with the bytes of each file that is there.

    Raises:
        StoreError: there is no such store, or it is damaged.
        RemoteError: the URL cannot be written, or holds another store.
        MissingExtraError: obstore is not installed.
        ValueError: this is no URL.
    """
    if not is_url(url):
        raise ValueError(f"{url} is no URL, such as s3://bucket/photos.fds; copy a store to a folder with cp -r")
    opened = Store(store, kind=None)
    manifest = opened.manifest
    with Agent(url, storage) as agent, ThreadPoolExecutor(REQUESTS) as pool:
        _refuse_other(agent, manifest)
        shards = [(opened.shard(v, k), shard_file(v.name, k), total) for v in manifest.variants for k, total in enumerate(v.shards)]
        others = [(opened.path / name, name, total) for name, total in manifest.files.items()]
        for total in pool.map(lambda each: _put_file(agent, opened, *each), [*shards, *others]):
            tick(total.bytes)
        offsets = dict(pool.map(lambda variant: _put_offsets(agent, opened, variant), manifest.variants))
        _put(agent, MANIFEST, published_manifest(manifest, offsets))


def published_manifest(manifest: Manifest, offsets: Mapping[str, FileSum]) -> bytes:
    """Return the manifest of the copy of a store. offsets: the tables of where records lie, by name."""
    body = json.loads(manifest.to_json())
    body["version"] = WITH_MORE
    body["files"] |= {name: {"bytes": total.bytes, "xxh3_128": total.xxh3_128} for name, total in offsets.items()}
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def offsets_table(places: Iterable[Array]) -> bytes:
    """Return the file that says where the records of a variant lie. places: the start and the length of each, for each shard."""
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([np.empty((0, 2), "<u8"), *(one.reshape(-1, 2) for one in places)]).astype("<u8"))
    return buffer.getvalue()


def _refuse_other(agent: Agent, manifest: Manifest) -> None:
    """Raise a RemoteError if another store is at the URL."""
    data = agent.read(MANIFEST)
    if data is None:
        return
    try:
        found = json.loads(data).get("fingerprint")
    except (ValueError, AttributeError):
        found = None
    if found != manifest.fingerprint:
        raise RemoteError(f"{agent.url} holds another store: give a URL where nothing is, or delete what is there")


def _put_file(agent: Agent, store: Store, path: Path, name: str, total: FileSum) -> FileSum:
    try:
        same = agent.put_file(name, path, total, check=True)
    except FormatError as error:
        raise FormatError(f"{error}; run fastdata verify {store.path}") from None
    _check(agent, name, same=same)
    return total


def _put_offsets(agent: Agent, store: Store, variant: Variant) -> tuple[str, FileSum]:
    counts = store.manifest.shard_records(variant)
    places = (record_places(store.shard(variant, k), count) for k, count in enumerate(counts))
    name = offsets_file(variant.name)
    return name, _put(agent, name, offsets_table(places))


def _put(agent: Agent, name: str, data: bytes) -> FileSum:
    _check(agent, name, same=agent.put(name, data))
    return sum_of(data)


def _check(agent: Agent, name: str, *, same: bool) -> None:
    """Raise an error unless an object has the bytes that were to be written."""
    if not same:
        raise RemoteError(
            f"{agent.url}/{name} exists and is of another store: give a URL where nothing is, or delete what is there"
        )
