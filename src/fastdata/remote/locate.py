"""Finds what a dataset's argument names: a folder, or a store in object storage."""

from __future__ import annotations

import os
from pathlib import Path

from fastdata.remote.reader import RemoteStore
from fastdata.remote.url import Storage, is_url, local_path, parse_bytes, scheme

__all__ = ["locate"]

StrPath = str | os.PathLike[str]


def locate(
    path: StrPath,
    cache: StrPath | None = None,
    cache_size: int | str | None = None,
    storage: Storage | None = None,
    *,
    in_memory: bool = False,
) -> StrPath:
    """Return a path of a store's files: what was given, or for a URL a RemoteStore.

    Args:
        path: a folder, a URL, or a RemoteStore.
        cache: the folder for shards; None: the environment's FASTDATA_CACHE.
        cache_size: the most bytes of shards in it, such as "200GB"; None: FASTDATA_CACHE_SIZE, or what the disk has.
        storage: options of the client: endpoint, region, anonymous and others.
        in_memory: what is read is held in memory: without a cache, shards pass through a folder of the user, which keeps none.

    Raises:
        ValueError: an argument is wrong, or a URL has no cache.
        RemoteError: the store cannot be read.
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
    if folder is None and not in_memory:
        raise ValueError(f"{url} is read through a cache: give cache=FOLDER, on a local disk, or set FASTDATA_CACHE")
    size = cache_size if cache_size is not None else os.environ.get("FASTDATA_CACHE_SIZE")
    limit = None if size is None else parse_bytes(size, "cache_size")
    return RemoteStore(url, dict(storage or {}), folder, limit)
