"""Reads objects by URL: in this process, or in a child, because a process that has used obstore must not fork."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata import errors
from fastdata.errors import FastDataError, MissingExtraError, RemoteError, StoreError
from fastdata.remote.bucket import NO_OBJECT, RANGE, Bucket, is_plain
from fastdata.remote.cache import Cache
from fastdata.remote.url import Storage, split_url
from fastdata.remote.wire import Message, receive, send

__all__ = ["Apart", "Objects", "Place", "ReadsObjects", "Version", "main"]

START = "import sys; from fastdata.remote.objects import main; main(int(sys.argv[1]))"
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
            raise RemoteError(f"{url} {now}; leave SOURCE alone while it is prepared, and plan again with --overwrite")

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
        self._lock = threading.RLock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def below(self, url: str) -> Iterator[Listed]:
        """Yield the names below a URL, and the sizes in bytes, of all objects there, in parts."""
        with self._lock:
            found = self._ask({"ask": "list", "url": url}).body
            while found["rows"] is not None:
                yield [(name, size) for name, size in found["rows"]]
                found = self._answer().body

    def versions(self, urls: Sequence[str]) -> list[Version | None]:
        """Return the versions of objects; None: there is no such object."""
        found = self._ask({"ask": "versions", "urls": list(urls)}).body["versions"]
        return [None if version is None else Version(*version) for version in found]

    def read(self, url: str) -> bytes:
        """Return the bytes of an object."""
        found = self._ask({"ask": "read", "url": url})
        if found.body["missing"]:
            raise FileNotFoundError(errno.ENOENT, NO_OBJECT, url)
        return bytes(found.data)

    def fetch(self, url: str, version: Version, place: Place) -> None:
        """Copy an object into a cache, unless it is there."""
        paths = [os.fspath(place.file), os.fspath(place.cache), place.limit]
        self._ask({"ask": "fetch", "url": url, "version": version, "place": paths})

    def close(self) -> None:
        """End the child."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._process is not None and self._owner == os.getpid():  # and not a process that was forked from it
                self._process.kill()
                self._process.wait()
            self._process = None

    def _ask(self, body: Mapping[str, Any]) -> Message:
        with self._lock:
            if self._connection is None:
                self._start()
            assert self._connection is not None
            try:
                send(self._connection, Message(dict(body)))
            except OSError:
                raise self._ended() from None
            return self._answer()

    def _answer(self) -> Message:
        assert self._connection is not None
        try:
            found = receive(self._connection)
        except (OSError, EOFError):
            raise self._ended() from None
        except BaseException:
            self.close()  # Ctrl-C, for instance: the answer would be taken for that of the next question
            raise
        if "error" in found.body:
            kind = getattr(errors, found.body["error"], StoreError)
            raise kind(found.body["message"])
        return found

    def _ended(self) -> RemoteError:
        self.close()
        return RemoteError("the process that reads from object storage has ended; run the same command again")

    def _start(self) -> None:
        if find_spec("obstore") is None:
            raise MissingExtraError("obstore")
        ours, theirs = socket.socketpair()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env
            )
        self._connection = ours
        send(ours, Message({"storage": self._storage}))

    def __del__(self) -> None:
        self.close()


def main(descriptor: int) -> None:
    """Answer the questions of the parent until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    connection = socket.socket(fileno=descriptor)
    try:
        objects = Objects(receive(connection).body["storage"])
        while True:
            asked = receive(connection).body
            try:
                for message in ANSWERS[asked["ask"]](objects, asked):
                    send(connection, message)
            except (FastDataError, OSError) as error:
                kind = type(error).__name__ if isinstance(error, FastDataError) else "StoreError"
                send(connection, Message({"error": kind, "message": str(error)}))
    except (EOFError, OSError):
        os._exit(0)  # threads that wait for a server need not be waited for


def _list(objects: Objects, asked: dict[str, Any]) -> Iterator[Message]:
    for part in objects.below(asked["url"]):
        yield Message({"rows": part})
    yield Message({"rows": None})


def _versions(objects: Objects, asked: dict[str, Any]) -> Iterator[Message]:
    yield Message({"versions": objects.versions(asked["urls"])})


def _read(objects: Objects, asked: dict[str, Any]) -> Iterator[Message]:
    try:
        data = objects.read(asked["url"])
    except FileNotFoundError:
        yield Message({"missing": True})
    else:
        yield Message({"missing": False}, data)


def _fetch(objects: Objects, asked: dict[str, Any]) -> Iterator[Message]:
    file, cache, limit = asked["place"]
    objects.fetch(asked["url"], Version(*asked["version"]), Place(Path(file), Path(cache), limit))
    yield Message({})


ANSWERS: dict[str, Callable[[Objects, dict[str, Any]], Iterator[Message]]] = {
    "list": _list,
    "versions": _versions,
    "read": _read,
    "fetch": _fetch,
}
