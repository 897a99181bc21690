"""Reads objects by URL: in this process, or in a child, because a process that has used obstore must not fork."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.errors import RemoteError, StoreError
from fastdata.remote.bucket import NO_OBJECT, RANGE, Bucket, is_plain
from fastdata.remote.cache import Cache
from fastdata.remote.child import Child
from fastdata.remote.url import Storage, split_url
from fastdata.remote.wire import Message

__all__ = ["Apart", "Objects", "Place", "ReadsObjects", "Server", "Version"]

REQUESTS = 32  # in flight
DOWNLOADS = 8  # ranges of files that are fetched whole, in flight
ROWS = 10_000  # of a listing in one message
WAIT_S = 300.0  # for room in the cache, while other processes read what is in it
TRIES = 5  # to get the right bytes, or to write to a disk that is full: each makes the cache smaller
MD5 = re.compile("[0-9a-f]{32}")  # the ETag of an object that was written at once, and not encrypted with a key of its own

Listed = list[tuple[str, int]]


class Version(NamedTuple):
    """The size of an object in bytes, and what changes when it is replaced: its ETag, or its time."""

    size: int
    tag: str


class Place(NamedTuple):
    """Where the copy of an object goes: its file, and the folder and the limit of the cache that this belongs to."""

    file: Path
    cache: Path
    limit: int | None


class ReadsObjects(Protocol):
    """Reads objects by their URLs. Errors are RemoteError, or FileNotFoundError for an object that does not exist."""

    def below(self, url: str) -> Iterator[Listed]:
        """Yield the names below a URL, and the sizes in bytes, of all objects there, in parts."""

    def versions(self, urls: Sequence[str]) -> list[Version | None]:
        """Return the versions of objects; None: there is no such object."""

    def read(self, url: str) -> bytes:
        """Return the bytes of an object."""

    def fetch(self, url: str, version: Version, place: Place) -> None:
        """Copy an object into a cache, unless it is there."""

    def close(self) -> None:
        """Free what is held."""


class Objects:
    """Reads objects in this process, which must not fork afterwards. It is safe to use from several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = dict(storage)
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()
        self._requests = ThreadPoolExecutor(REQUESTS)
        self._downloads = ThreadPoolExecutor(DOWNLOADS)

    def _at(self, url: str) -> tuple[Bucket, str]:
        root, key = split_url(url)
        with self._lock:
            if root not in self._buckets:
                self._buckets[root] = Bucket(root, self._storage)
            return self._buckets[root], key

    def below(self, url: str) -> Iterator[Listed]:
        """Yield the names below a URL, and the sizes in bytes, of all objects there, in parts."""
        bucket, key = self._at(url)
        below = f"{key}/" if key else ""
        part: Listed = []
        for name, size in bucket.list(key):
            if not name.startswith(below):  # an object "photos/", with which some programs mark a folder, comes without its slash
                continue
            part.append((name.removeprefix(below), size))
            if len(part) == ROWS:
                yield part
                part = []
        yield part

    def versions(self, urls: Sequence[str]) -> list[Version | None]:
        """Return the versions of objects; None: there is no such object."""
        return list(self._requests.map(self._version, urls))

    def _version(self, url: str) -> Version | None:
        bucket, key = self._at(url)
        try:
            return Version(*bucket.version(key))
        except RemoteError as error:
            if _is_absent(error):
                return None
            raise

    def read(self, url: str) -> bytes:
        """Return the bytes of an object."""
        bucket, key = self._at(url)
        before = b""
        try:
            for _ in range(TRIES):
                data, tag = bucket.read_tagged(key)
                if data == before or not self._differs(url, tag, lambda digest: digest.update(data)):  # noqa: B023
                    return data
                before = data
        except RemoteError as error:
            if _is_absent(error):
                raise FileNotFoundError(errno.ENOENT, NO_OBJECT, url) from None
            raise
        raise RemoteError(f"{url} came {TRIES} times with different bytes: the network changes them")

    def _differs(self, url: str, tag: str, feed: Callable[[Any], None]) -> bool:
        """Return whether bytes that may have changed on their way are not those whose MD5 is the tag; not all tags are one."""
        wanted = tag.strip('"').lower()
        if not MD5.fullmatch(wanted) or not is_plain(split_url(url)[0], self._storage):
            return False
        digest = hashlib.md5(usedforsecurity=False)
        feed(digest)
        return digest.hexdigest() != wanted

    def fetch(self, url: str, version: Version, place: Place) -> None:
        """Copy an object into a cache, unless it is there.

        Raises:
            RemoteError: it cannot be read, or is not of this version any more.
            StoreError: there is no room.
        """
        cache = Cache(place.cache, place.limit, kept="*/*/*", item="file")
        for attempt in range(TRIES):
            try:
                with cache.reserved(place.file, version.size, lambda path: float("inf"), wait_s=WAIT_S) as descriptor:
                    if descriptor is not None:
                        self._fill(url, version, descriptor)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC or attempt == TRIES - 1:
                    raise StoreError(f"{url} cannot be written to the cache {place.cache}: {error.strerror}") from None
                cache.shrink()

    def _fill(self, url: str, version: Version, descriptor: int) -> None:
        bucket, key = self._at(url)
        self._check(url, version)
        before, found = "", bucket.download(key, version.size, descriptor, self._downloads)
        while found != before and self._differs(url, version.tag, lambda digest: _feed(digest, descriptor, version.size)):
            before, found = found, bucket.mend(key, version.size, descriptor, self._downloads)
        self._check(url, version)  # it was the same from the first range to the last

    def _check(self, url: str, version: Version) -> None:
        found = self._version(url)
        if found != version:
            now = "is gone" if found is None else f"was replaced: it had {version.size} bytes, and has {found.size} now"
            now += f" (ETag {version.tag}, now {found.tag})" if found and found.size == version.size else ""
            raise RemoteError(f"{url} {now}; leave SOURCE alone while it is prepared, and plan again, to another OUT")

    def close(self) -> None:
        """Free what is held."""


def _feed(digest: Any, descriptor: int, size: int) -> None:
    for start in range(0, size, RANGE):
        digest.update(os.pread(descriptor, min(RANGE, size - start), start))


def _is_absent(error: RemoteError) -> bool:
    """Return whether an object does not exist, though its bucket does."""
    return error.missing and NO_OBJECT in str(error)


class Apart:
    """Reads objects in a child, which is started at the first question and ends with this process, or with `close`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = dict(storage)
        self._lock = threading.Lock()
        self._started: Child | None = None

    @property
    def _child(self) -> Child:
        with self._lock:
            if self._started is None:
                self._started = Child("fastdata.remote.objects:Server", self._storage)
            return self._started

    def below(self, url: str) -> Iterator[Listed]:
        """Yield the names below a URL, and the sizes in bytes, of all objects there, in parts."""
        for found in self._child.each("below", url):
            yield [(name, size) for name, size in found.body["rows"]]

    def versions(self, urls: Sequence[str]) -> list[Version | None]:
        """Return the versions of objects; None: there is no such object."""
        found = self._child.ask("versions", list(urls)).body["versions"]
        return [None if version is None else Version(*version) for version in found]

    def read(self, url: str) -> bytes:
        """Return the bytes of an object."""
        found = self._child.ask("read", url)
        if found.body["missing"]:
            raise FileNotFoundError(errno.ENOENT, NO_OBJECT, url)
        return bytes(found.data)

    def fetch(self, url: str, version: Version, place: Place) -> None:
        """Copy an object into a cache, unless it is there."""
        self._child.ask("fetch", url, version, os.fspath(place.file), os.fspath(place.cache), place.limit)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            child, self._started = self._started, None
        if child is not None:
            child.close()

    def __del__(self) -> None:
        self.close()


class Server:
    """What the child does. Each method answers one question."""

    def __init__(self, storage: Storage) -> None:
        self._objects = Objects(storage)

    def below(self, url: str) -> Iterator[Message]:
        for part in self._objects.below(url):
            yield Message({"rows": part})

    def versions(self, urls: Sequence[str]) -> Message:
        return Message({"versions": self._objects.versions(urls)})

    def read(self, url: str) -> Message:
        try:
            data = self._objects.read(url)
        except FileNotFoundError:
            return Message({"missing": True})
        return Message({"missing": False}, data)

    def fetch(self, url: str, version: Sequence[Any], file: str, cache: str, limit: int | None) -> Message:
        self._objects.fetch(url, Version(*version), Place(Path(file), Path(cache), limit))
        return Message({})
