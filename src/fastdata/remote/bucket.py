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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from fastdata.errors import RemoteError, lacking, needs
from fastdata.remote.url import Storage, local_path, scheme, split_url

__all__ = ["NO_OBJECT", "RANGE", "Bucket", "is_plain"]

RANGE = 16 << 20  # bytes of one request: a timeout spans a whole request, and a repeated one should not be long
AHEAD = 4  # requests of one download in flight
PART = 8 << 20  # of a multipart upload
TRIES = 4  # to write an object
TIMEOUTS = {"timeout": timedelta(seconds=120), "connect_timeout": timedelta(seconds=5)}
RETRIES = {"backoff": {"init_backoff": timedelta(milliseconds=100)}, "retry_timeout": timedelta(seconds=60)}
READERS = ((1, 1), (5, 6))  # seconds without a byte after which the rest is asked for again, and how often; for slow servers
WRITERS = ((5, 4), (120, 1))  # seconds for a part, counted from when it is begun to be sent, and parts in flight; for slow networks
NO_OBJECT = "there is no such object (404)"
DENIED = "access is denied (403)"
PASSING = (  # signs of errors after which the client does not repeat a write: the server may have done it
    "error sending request",
    "connection closed",
    "connection reset",
    "broken pipe",
    "timed out",
    "timeout",
    "xamzcontentsha256mismatch",
    "baddigest",
    "incompletebody",
    "nosuchupload",
    "conditionalrequestconflict",
)

CAUSES = (  # what a server or a library says, in lower case, and what it means
    ("too many open files", lacking(OSError(errno.EMFILE, ""))),
    ("requesttimetooskewed", "the clock of this machine differs from the server's by minutes: set it (NTP)"),
    ("expired", "the credentials have expired: renew them"),
    ("tokenrefreshrequired", "the credentials have expired: renew them"),
    ("unable to canonicalize", "there is no such folder"),
    ("nosuchbucket", "there is no such bucket"),
    ("containernotfound", "there is no such container"),
    ("invalidaccesskeyid", "the server does not know the access key"),
    ("signaturedoesnotmatch", "the secret key is wrong"),
    ("169.254.169.254", "no credentials were found: set them, or storage={'anonymous': True} for a public bucket"),
    ("account must be specified", "no account is named: set AZURE_STORAGE_ACCOUNT_NAME, or storage={'account_name': ...}"),
    ("dns error", "the name of the server cannot be resolved: check the endpoint and the network"),
    ("connection refused", "no server answers there: check the endpoint"),
    ("timed out", "the server does not answer in time"),
    ("timeout", "the server does not answer in time"),
    ("empty path segment", "a key has an empty name between two slashes: rename that object, or name the others in a table"),
)


_users = set[int]()  # this process, and those that it was forked from, if they have used a client


class Bucket:
    """The objects below a URL. It is safe to use from several threads.

    Args:
        url: such as s3://bucket/folder; also gs, az, https, http and file.
        storage: endpoint, region, anonymous, or any option of obstore's client for this service. What is missing comes from the
            environment.
        create: make the folder of a file:// URL.

    Attributes:
        plain: objects may come without TLS, which notices when a byte changes on its way.

    Raises:
        MissingExtraError: obstore is not installed.
        RemoteError: the URL or an option is wrong.
    """

    def __init__(self, url: str, storage: Storage | None = None, *, create: bool = False) -> None:
        with needs("obstore"):
            import obstore
            from obstore.store import LocalStore, from_url
        self.url = url.rstrip("/")
        self._api = obstore
        base, key = split_url(f"{self.url}/-")
        base = base.replace("#", "%23").replace("?", "%3F")  # they are characters of a key, and no parts of a URL
        self._prefix = "" if scheme(url) == "file" else key[:-1].rstrip("/")
        _users.add(os.getpid())
        if len(_users) > 1:
            raise RemoteError(
                "this process was forked from one that has used object storage, whose client does not survive that: start it with "
                "multiprocessing's method spawn or forkserver"
            )
        storage = storage or {}
        self.plain = is_plain(self.url, storage)
        options = _options(self.url, storage, create=create)
        self._is_slow = False  # whether a write was too slow for the first of the writers

        def client(seconds: int, retries: int) -> Any:
            if "client_options" in options:
                options["client_options"]["read_timeout"] = timedelta(seconds=seconds)
                options["retry_config"]["max_retries"] = retries
            return LocalStore(local_path(self.url), **options) if scheme(url) == "file" else from_url(base, **options)

        with self._explained(""):
            try:
                self._quick, self._store = (client(*reader) for reader in READERS)
                self._writers = [(client(seconds, READERS[-1][1]), parts) for seconds, parts in WRITERS]
            except BaseException as error:  # obstore may panic, which is no Exception
                if not isinstance(error, TypeError) and type(error).__name__ != "PanicException":
                    raise
                raise ValueError(f"an option of storage is wrong ({', '.join(map(str, storage))}): {str(error)[:300]}") from None

    def _key(self, path: str) -> str:
        """Return the key of an object below the URL, which is text."""
        return f"{self._prefix}/{path}".strip("/")

    def version(self, path: str) -> tuple[int, str]:
        """Return the size of an object in bytes, and what changes when it is replaced: its ETag, or its time."""
        with self._explained(path):
            found = self._api.head(self._store, self._key(path))
        return int(found["size"]), str(found.get("e_tag") or found.get("version") or found["last_modified"].isoformat())

    def read(self, path: str) -> bytes:
        """Return a small object."""
        return self.read_tagged(path)[0]

    def read_twice(self, path: str, pool: Executor) -> bytes:
        """Return a small object of which no checksum is known; two readings are equal, unless TLS notices changed bytes."""
        if not self.plain:
            return self.read(path)
        beside = pool.submit(self.read, path)
        seen, found = {self.read(path)}, beside.result()
        while found not in seen:
            if len(seen) == TRIES:
                raise RemoteError(f"{self.url}/{path} came {TRIES} times with different bytes: the network changes them")
            seen.add(found)
            found = self.read(path)
        return found

    def read_tagged(self, path: str) -> tuple[bytes, str]:
        """Return an object and its ETag, or ""."""
        with self._explained(path):
            found = self._api.get(self._store, self._key(path))
            return bytes(found.bytes()), found.meta["e_tag"] or ""

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        """Return a range of an object."""
        with self._explained(path):
            found = memoryview(self._in_time(lambda store: self._api.get_range(store, self._key(path), start=start, length=length)))
        if len(found) != length:
            raise RemoteError(
                f"{self.url}/{path}: {len(found)} bytes came for a range of {length} at {start}: the object is too short"
            )
        return found

    def _in_time(self, read: Callable[[Any], Any]) -> Any:
        """Return what a function reads with a client. One that waits long for bytes is taken after one that does not."""
        from obstore.exceptions import GenericError

        try:
            return read(self._quick)
        except GenericError:
            return read(self._store)

    def download(self, path: str, size: int, descriptor: int, pool: Executor) -> str:
        """Write an object of so many bytes to the beginning of a file, and return the xxh3-128 of what came, in hexadecimal."""
        digest = xxhash.xxh3_128()
        for start, part in self._ranges(pool, path, size):
            digest.update(part)
            _write(descriptor, part, start)
        return digest.hexdigest()

    def _ranges(self, pool: Executor, path: str, size: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the ranges of an object in order, while the next ones are on their way."""
        waiting = deque[tuple[int, Future[memoryview]]]()
        starts = iter(range(0, size, RANGE))
        try:
            while True:
                while len(waiting) < AHEAD and (start := next(starts, None)) is not None:
                    waiting.append((start, pool.submit(self.read_range, path, start, min(RANGE, size - start))))
                if not waiting:
                    return
                start, request = waiting.popleft()
                yield start, request.result()
        finally:
            for _, request in waiting:
                request.cancel()

    def put(self, path: str, data: bytes | Path, *, replace: bool = False) -> bool:
        """Write an object, from bytes or a file, and return whether it was written.

        It is not, unless `replace`, if there is an object of this name: which may be this one, if an answer was lost.
        """
        from obstore.exceptions import AlreadyExistsError, GenericError

        def write(attempt: int) -> bool:
            writer, parts = self._writers[attempt > 0 or self._is_slow]
            mode = "overwrite" if replace else "create"
            try:
                self._api.put(writer, self._key(path), data, mode=mode, chunk_size=PART, max_concurrency=parts)
            except AlreadyExistsError:
                return False
            except GenericError as error:
                self._is_slow |= "timed out" in _words(error) or "timedout" in _words(error)
                raise
            return True

        return self._repeated(path, write)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the path below the URL, and the size in bytes, of each object whose path begins with a folder's."""
        with self._explained(prefix):
            for batch in self._api.list(self._store, self._key(prefix) or None, chunk_size=1000):
                for found in batch:
                    yield found["path"].removeprefix(f"{self._prefix}/"), int(found["size"])

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        from obstore.exceptions import NotFoundError

        def delete(names: str | list[str], attempt: int) -> bool:
            try:
                self._api.delete(self._store, self._key(names) if isinstance(names, str) else [*map(self._key, names)])
            except (NotFoundError, FileNotFoundError):
                return False
            return True

        if not self._repeated("", partial(delete, list(paths))):  # many in one request, where the service can
            for path in paths:
                self._repeated(path, partial(delete, path))

    def _repeated(self, path: str, act: Callable[[int], bool]) -> bool:
        """Call a function that writes, and again after an error that may pass, with the number of the try."""
        from obstore.exceptions import GenericError, NotFoundError

        for attempt in range(TRIES):
            with self._explained(path):
                try:
                    return act(attempt)
                except (GenericError, NotFoundError) as error:
                    if attempt + 1 == TRIES or not any(sign in _words(error) for sign in PASSING):
                        raise
            time.sleep(2**attempt / 10)
        return False  # never reached

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Turn obstore's errors into ours, which name the URL and the cause."""
        from obstore import exceptions as known

        try:
            yield
        except (known.BaseError, OSError, ValueError) as error:
            where = f"{self.url}/{path}" if path else self.url
            cause = _cause(error, known)
            raise RemoteError(f"{where}: {cause}", missing=cause == NO_OBJECT, denied=cause.startswith(DENIED)) from None


def _words(error: Exception) -> str:
    """Return what an error says, in lower case, without an option of the client whose name has a sign of a cause."""
    return str(error).lower().replace("retry_timeout", "")


def _cause(error: Exception, known: Any) -> str:
    """Return the cause of an error of obstore in plain words."""
    text = " ".join(str(error).partition("Debug source:")[0].split())
    low = _words(error)
    found = next((meaning for sign, meaning in CAUSES if sign in low), "")
    if isinstance(error, known.NotFoundError | FileNotFoundError):
        return found if found.startswith("there is no such") else NO_OBJECT
    if isinstance(error, known.PermissionDeniedError) or "403 forbidden" in low:
        words = " ".join(re.sub("<[^>]*>", " ", text.partition("403 Forbidden:")[2]).split())[:300]
        return found or f"{DENIED}: {words or 'the server gives no reason'}; check the credentials and the policy of the bucket"
    if isinstance(error, known.NotSupportedError):
        return "the server does not answer with the range that it was asked for" if "range" in low else "it can only be read"
    return f"{found} ({text[:300]})" if found else text[:500] or type(error).__name__


def _options(url: str, storage: Mapping[str, Any], *, create: bool) -> dict[str, Any]:
    """Return the arguments for obstore's client."""
    kind = scheme(url)
    if kind == "file":
        return {"mkdir": create}
    config = {key: value for key, value in storage.items() if key != "anonymous"}
    if storage.get("anonymous"):
        config["skip_signature"] = True
    env = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
    endpoints = [url, str(config.get("endpoint", "")), *(os.environ.get(name, "") for name in env)]
    client: dict[str, Any] = dict(TIMEOUTS)
    if any(endpoint.startswith("http://") for endpoint in endpoints):
        client["allow_http"] = True
    if kind == "s3" and (endpoint := os.environ.get(env[0]) or os.environ.get(env[1])):
        config.setdefault("endpoint", endpoint)
    if kind == "gs" and "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    if kind in ("http", "https"):
        config = {}
    return {**config, "client_options": client, "retry_config": dict(RETRIES)}


def is_plain(url: str, storage: Storage) -> bool:
    """Return whether objects may come without TLS, which notices when a byte changes on its way."""
    return bool(_options(url, storage, create=False).get("client_options", {}).get("allow_http"))


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
