"""Object storage through obstore, behind one small interface.

A process that has used obstore may fork, but its children would hang if they used it: they get an error. So workers of datasets and
loaders leave it to the downloader.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from fastdata.errors import RemoteError, lacking, needs
from fastdata.remote.url import Storage, local_path, scheme, split_url

RANGE = 16 << 20  # bytes of one request: a timeout spans a whole request, and a repeated one should not be long
AHEAD = 4  # requests of one download in flight
PART = 8 << 20  # of a multipart upload
TRIES = 4  # to write an object, or to read equal bytes twice
CHECKED_TRIES = 6  # to read bytes with the right checksum
TIMEOUTS = {"timeout": timedelta(seconds=120), "connect_timeout": timedelta(seconds=5)}
RETRIES = {"backoff": {"init_backoff": timedelta(milliseconds=100)}, "retry_timeout": timedelta(seconds=60)}
# Seconds without a byte after which the rest is asked for again, and how often: to read, to read from a slow server, and to write,
# where the seconds are for a part, so that eight uploads at once need 5 Mbit/s
CLIENTS = (1, 1), (5, 6), (120, 6)
CAUSES = (  # what a server or a library says, in lower case, and what it means
    ("too many open files", lacking(OSError(errno.EMFILE, ""))),
    ("unable to canonicalize", "there is no such folder"),
    ("nosuchbucket", "there is no such bucket"),
    ("containernotfound", "there is no such container"),
    ("expired", "the credentials have expired: renew them"),
    ("169.254.169.254", "no credentials were found: set them, or storage={'anonymous': True} for a public bucket"),
    ("dns error", "the name of the server cannot be resolved: check the endpoint and the network"),
    ("connection refused", "no server answers there: check the endpoint"),
    ("timed out", "the server does not answer in time"),
)


_users = set[int]()  # this process, and those that it was forked from, if they have used a client


class Bucket:
    """The objects below a URL. It is safe to use from several threads.

    storage has endpoint, region, anonymous, or any option of obstore's client for this service; what is missing comes from the
    environment. A MissingExtraError says that obstore is not installed, a RemoteError that the URL or an option is wrong.

    plain: whether objects may come without TLS, which would notice changed bytes.
    """

    def __init__(self, url: str, storage: Storage | None = None, *, create: bool = False) -> None:
        with needs("obstore"):
            import obstore
            from obstore.store import LocalStore, from_url
        self.url = url.rstrip("/")
        self._api, self._errors = obstore, obstore.exceptions
        base, key = split_url(f"{self.url}/-")
        base = base.replace("#", "%23").replace("?", "%3F")  # they are characters of a key, and no parts of a URL
        self._prefix = "" if scheme(url) == "file" else key[:-1].rstrip("/")
        _users.add(os.getpid())
        if len(_users) > 1:
            raise RemoteError(
                "this process was forked from one that has used object storage, whose client does not survive a fork: start it "
                "with multiprocessing's method spawn or forkserver"
            )
        storage = storage or {}
        config, client_options = _options(self.url, storage)
        self.plain = "allow_http" in client_options

        def client(seconds: int, retries: int) -> Any:
            if scheme(url) == "file":
                return LocalStore(local_path(self.url), mkdir=create)
            timeouts, retry_config = {"read_timeout": timedelta(seconds=seconds)}, RETRIES | {"max_retries": retries}
            return from_url(base, **config, client_options=client_options | timeouts, retry_config=retry_config)

        with self._explained(""):
            try:
                self._quick, self._store, self._writer = (client(*times) for times in CLIENTS)
            except BaseException as error:  # obstore may panic, which is no Exception
                if not isinstance(error, TypeError) and type(error).__name__ != "PanicException":
                    raise
                raise ValueError(f"an option of storage is wrong ({', '.join(map(str, storage))}): {str(error)[:300]}") from None

    def _key(self, path: str) -> str:
        """Return the key of an object below the URL, which is text."""
        return f"{self._prefix}/{path}".strip("/")

    def stamp(self, path: str) -> tuple[int, str]:
        """Return the size of an object in bytes, and its ETag, or when it was written."""
        with self._explained(path):
            found = self._api.head(self._store, self._key(path))
            return int(found["size"]), found["e_tag"] or str(found["last_modified"])

    def read_twice(self, path: str) -> bytes:
        """Return a small object without a known checksum. Without TLS, it is read until two readings are equal."""
        seen = [self.read_tagged(path)[0]]
        while self.plain and len(set(seen)) == len(seen):
            if len(seen) > TRIES:
                raise RemoteError(f"{self.url}/{path} was read {len(seen)} times, with different bytes: the network changes them")
            seen.append(self.read_tagged(path)[0])
        return max(seen, key=seen.count)

    def read_tagged(self, path: str) -> tuple[bytes, str]:
        """Return an object and its ETag, or ""."""
        with self._explained(path):
            found = self._api.get(self._store, self._key(path))
            return bytes(found.bytes()), found.meta["e_tag"] or ""

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        """Return a range of an object."""
        wanted = {"path": self._key(path), "start": start, "length": length}
        with self._explained(path):
            try:
                found = memoryview(self._api.get_range(self._quick, **wanted))
            except self._errors.GenericError:
                found = memoryview(self._api.get_range(self._store, **wanted))
        if len(found) != length:
            raise RemoteError(
                f"{self.url}/{path}: {len(found)} bytes came for a range of {length} at {start}: the object is too short"
            )
        return found

    def download(self, path: str, size: int, descriptor: int, pool: Executor) -> str:
        """Write an object of a known size to the beginning of a file, and return the xxh3-128 of its bytes, in hexadecimal."""
        digest, waiting = xxhash.xxh3_128(), deque[Future[memoryview]]()
        starts = iter(range(0, size, RANGE))
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.seek(0)
                while True:
                    for start in islice(starts, AHEAD - len(waiting)):  # the next ranges are on their way
                        waiting.append(pool.submit(self.read_range, path, start, min(RANGE, size - start)))
                    if not waiting:
                        return digest.hexdigest()
                    part = waiting.popleft().result()
                    digest.update(part)
                    file.write(part)
        finally:
            for request in waiting:
                request.cancel()

    def fetch(self, path: str, size: int, xxh3_128: str, descriptor: int, pool: Executor) -> None:
        """Write an object to the beginning of a file, again until it has this checksum, six times at most."""
        for _ in range(CHECKED_TRIES):
            if self.download(path, size, descriptor, pool) == xxh3_128:
                return
        raise RemoteError(
            f"{self.url}/{path} was read {CHECKED_TRIES} times, never with the checksum in the manifest: the object is damaged, or "
            "was replaced; publish the store again"
        )

    def put(self, path: str, data: bytes | Path) -> None:
        """Write an object, from bytes or a file, and again after an error that may pass."""
        with self._explained(path):
            for attempt in range(1, TRIES + 1):
                try:
                    self._api.put(self._writer, self._key(path), data, chunk_size=PART, max_concurrency=1)
                    return
                except (self._errors.GenericError, self._errors.NotFoundError):
                    if attempt == TRIES:
                        raise
                    time.sleep(2**attempt / 20)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the path below the URL, and the size in bytes, of each object whose path begins with a folder's."""
        with self._explained(prefix):
            for batch in self._api.list(self._store, self._key(prefix) or None, chunk_size=1000):
                for found in batch:
                    yield found["path"].removeprefix(f"{self._prefix}/"), int(found["size"])

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Turn obstore's errors into ours, which name the URL and the cause."""
        known = self._errors
        try:
            yield
        except (known.BaseError, OSError, ValueError) as error:
            text = " ".join(str(error).partition("Debug source:")[0].split())[:500]
            low = str(error).lower()
            cause = next((f"{meaning} ({text})" for sign, meaning in CAUSES if sign in low), "")
            missing = not cause and isinstance(error, known.NotFoundError | FileNotFoundError)
            denied = not cause and (isinstance(error, known.PermissionDeniedError) or "403 forbidden" in low)
            if missing:
                cause = "there is no such object (404)"
            elif denied:
                words = re.sub("<[^>]*>", " ", text.partition("403 Forbidden:")[2])
                cause = f"access is denied (403): {words}; check the credentials and the policy of the bucket"
            elif isinstance(error, known.NotSupportedError) and "range" in low:
                cause = "the server does not answer with the range that it was asked for"
            where = f"{self.url}/{path}" if path else self.url
            raise RemoteError(f"{where}: {cause or text or type(error).__name__}", missing=missing, denied=denied) from None


def _options(url: str, storage: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of obstore's stores, and those of their clients."""
    kind, client = scheme(url), dict[str, Any](TIMEOUTS)
    config = {key: value for key, value in storage.items() if key != "anonymous"}
    if storage.get("anonymous"):
        config["skip_signature"] = True
    env = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
    endpoints = [url, str(config.get("endpoint", "")), *(os.environ.get(name, "") for name in env)]
    if any(endpoint.startswith("http://") for endpoint in endpoints):
        client["allow_http"] = True
    if kind == "s3" and (endpoint := os.environ.get(env[0]) or os.environ.get(env[1])):
        config.setdefault("endpoint", endpoint)
    if kind == "gs" and "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    return {} if kind in ("http", "https") else config, client
