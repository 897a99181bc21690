"""Copies a finished store into object storage. The manifest is written last, so that there is a whole store or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastdata.errors import FormatError, RemoteError
from fastdata.remote.agent import REQUESTS, Agent
from fastdata.remote.url import Storage, is_url
from fastdata.store.files import MANIFEST, FileSum, shard_file
from fastdata.store.format import Manifest
from fastdata.store.store import Store

__all__ = ["publish"]


def publish(
    store: str | os.PathLike[str], url: str, *, storage: Storage | None = None, tick: Callable[[int], None] = lambda size: None
) -> None:
    """Copy a finished store to a URL, from which datasets read it through a cache.

    Files that are there already with the same bytes are kept, so an interrupted copy is continued. Nothing is overwritten.

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
        _check(agent, MANIFEST, same=agent.put(MANIFEST, manifest.to_json()))


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


def _check(agent: Agent, name: str, *, same: bool) -> None:
    """Raise an error unless an object has the bytes that were to be written."""
    if not same:
        raise RemoteError(
            f"{agent.url}/{name} exists and is of another store: give a URL where nothing is, or delete what is there"
        )
