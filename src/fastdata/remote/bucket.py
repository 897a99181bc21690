"""URLs of object storage, and the objects there, through obstore, behind one small interface.

A process that has used obstore may fork, but its children would hang if they used it: they get an error. Workers of datasets and
loaders leave object storage to the downloader.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import xxhash

from fastdata.errors import RemoteError, lacking, needs

Storage = Mapping[str, Any]

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https", "http", "file")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
RANGE = 8 << 20  # bytes of a request, also of a part of an upload: a timeout spans it, and a repeated one should not be long
RANGES_AT_ONCE = 4  # requests of one download in flight
WRITES = 4  # of an object, until one succeeds
READS = 6  # of an object, until its bytes are right
MD5 = re.compile("[0-9a-f]{32}")  # the ETag of an object that was written at once, and not encrypted with a key of its own
TIMEOUTS = {"timeout": timedelta(seconds=120), "connect_timeout": timedelta(seconds=5)}
RETRIES = {"backoff": {"init_backoff": timedelta(milliseconds=100)}, "retry_timeout": timedelta(seconds=60)}
# Seconds without a byte after which the rest is asked for again, and how often: to read, to read from a slow server, and to write,
# where the seconds are for a part, so that eight uploads at once need 5 Mbit/s
CLIENTS = (1, 1), (5, 6), (120, 6)
ENDPOINTS = "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"  # variables
CAUSES = (  # what a server or a library says, in lower case, and what it means
    ("too many open files", lacking(OSError(errno.EMFILE, ""))),
    ("nosuchbucket", "there is no such bucket"),
    ("containernotfound", "there is no such container"),
    ("expired", "the credentials have expired: renew them"),
    ("169.254.169.254", "no credentials were found: set them, or storage={'anonymous': True} for a public bucket"),
    ("dns error", "the name of the server cannot be resolved: check the endpoint and the network"),
    ("connection refused", "no server answers there: check the endpoint"),
    ("timed out", "the server does not answer in time"),
)


def scheme(text: str) -> str:
    """Return the scheme of a URL in lower case, or "" for a path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    return found[1].lower() if found else ""


def is_url(path: Any) -> bool:
    """Return whether this is a URL of object storage, and not a path. Raise a ValueError for a URL of another scheme."""
    if not isinstance(path, str) or not scheme(path):
        return False
    if scheme(path) not in SCHEMES:
        raise ValueError(f"{path} is a URL of an unknown scheme; known schemes are {', '.join(SCHEMES)}")
    return True


def local_path(url: str) -> Path:
    """Return the path of a file:// URL."""
    return Path(unquote("/" + url.partition("://")[2].partition("/")[2]))


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of a bucket, or of the first folder of a server, and the key of an object in it."""
    head, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    key = key.strip("/")
    if scheme(url) == "file":
        return f"{head}://", unquote(key)
    if scheme(url) not in ("http", "https"):
        return f"{head}://{host}", key
    first, slash, inner = key.partition("/")  # of a server of S3 or Azure, the first folder is the bucket
    return (f"{head}://{host}/{first}", unquote(inner)) if slash else (f"{head}://{host}", unquote(key))


def parse_bytes(text: int | str, name: str) -> int:
    """Return a size in bytes, given as a number or with a unit, such as "200GB". A ValueError names the argument `name`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]I?B|B|)", str(text).strip().upper())
    if found is None:
        raise ValueError(f"{name} is {text!r}, but must be a number of bytes, such as 500000000, or have a unit, as '200GB'")
    return int(float(found[1]) * UNITS[found[2]])


def parse_storage(words: Iterable[str]) -> dict[str, Any]:
    """Return options of a client that are given as KEY=VALUE, or raise a ValueError."""
    for word in (words := list(words)):
        if not re.match("[^=]+=", word):
            raise ValueError(f"--storage is {word!r}, but must be KEY=VALUE, such as endpoint=http://127.0.0.1:9000")
    return dict(word.split("=", 1) for word in words)


_users = set[int]()  # this process, and those that it was forked from, if they have used a client


class Bucket:
    """The objects below a URL. It is safe to use from several threads.

    storage has endpoint, region, anonymous, or any option of obstore's client for this service; what is missing comes from the
    environment. A MissingExtraError says that obstore is not installed, a RemoteError that the URL or an option is wrong.

    plain: whether objects may come without TLS, which would notice changed bytes.
    """

    def __init__(self, url: str, storage: Storage) -> None:
        with needs("obstore"):
            import obstore
            from obstore.store import LocalStore, from_url
        self.url = url.rstrip("/")
        self._api, self._errors = obstore, obstore.exceptions
        base, key = split_url(f"{self.url}/-")
        base = base.replace("#", "%23").replace("?", "%3F")  # they are characters of a key, and no parts of a URL
        self._prefix = key[:-1].rstrip("/")
        _users.add(os.getpid())
        if len(_users) > 1:
            raise RemoteError(
                "this process was forked from one that has used object storage, whose client does not survive a fork: start it "
                "with multiprocessing's method spawn or forkserver"
            )
        endpoints = [url, str(storage.get("endpoint", "")), *(os.environ.get(name, "") for name in ENDPOINTS)]
        self.plain = any(endpoint.startswith("http://") for endpoint in endpoints)

        names = {"anonymous": "skip_signature", "endpoint": "base_url" if scheme(url) == "gs" else "endpoint"}
        options = {} if scheme(url) in ("http", "https") else {names.get(name, name): value for name, value in storage.items()}

        def client(seconds: int, retries: int) -> Any:
            if scheme(url) == "file":
                return LocalStore()
            client_options = {**TIMEOUTS, "read_timeout": timedelta(seconds=seconds), "allow_http": self.plain}
            return from_url(base, **options, client_options=client_options, retry_config=RETRIES | {"max_retries": retries})

        with self._explained(""):
            try:
                self._quick, self._store, self._writer = (client(*times) for times in CLIENTS)
            except BaseException as error:  # obstore may panic, which is no Exception
                if not isinstance(error, TypeError) and type(error).__name__ != "PanicException":
                    raise
                raise ValueError(f"one option of storage ({', '.join(map(str, storage))}) is wrong: {str(error)[:300]}") from None

    def _key(self, path: str) -> str:
        """Return the key of an object below the URL, as text."""
        return f"{self._prefix}/{path}".strip("/")

    def stamp(self, path: str) -> tuple[int, str]:
        """Return the size of an object in bytes, and its ETag, or when it was written."""
        with self._explained(path):
            found = self._api.head(self._store, self._key(path))
            return int(found["size"]), found["e_tag"] or str(found["last_modified"])

    def read(self, path: str, *, twice: bool = False) -> bytes:
        """Return an object. Without TLS, read it again until its MD5 matches the ETag, or two answers are equal.

        twice: answers are also compared if the ETag is no MD5.
        """
        seen = set[bytes]()
        for _ in range(READS):
            with self._explained(path):
                found = self._api.get(self._store, self._key(path))
                data, tag = bytes(found.bytes()), (found.meta["e_tag"] or "").strip('"').lower()
            if not self.plain or data in seen:
                return data
            if hashlib.md5(data, usedforsecurity=False).hexdigest() == tag if MD5.fullmatch(tag) else not twice:
                return data
            seen.add(data)
        raise RemoteError(f"{self.url}/{path} was read {READS} times, with different bytes: the network changes them; use https")

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

    def download(self, path: str, size: int, descriptor: int) -> None:
        """Write an object of a known size to the beginning of a file, some ranges at a time."""

        def copy(start: int) -> None:
            part = self.read_range(path, start, min(RANGE, size - start))
            if os.pwrite(descriptor, part, start) < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
            list(pool.map(copy, range(0, size, RANGE)))

    def fetch(self, path: str, size: int, xxh3_128: str, descriptor: int) -> None:
        """Write an object to the beginning of an empty file, repeatedly until it has this checksum ("" for none)."""
        if not xxh3_128:
            os.pwrite(descriptor, self.read(path, twice=True), 0)
            return
        for _ in range(READS):
            self.download(path, size, descriptor)
            digest = xxhash.xxh3_128()
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() == xxh3_128:
                return
        raise RemoteError(
            f"{self.url}/{path} was read {READS} times, and never had the manifest's checksum: the object is damaged, or "
            "was replaced; publish the store again"
        )

    def put(self, path: str, data: bytes | Path) -> None:
        """Write an object, from bytes or a file, and again after an error that may pass."""
        with self._explained(path):
            for attempt in range(1, WRITES + 1):
                try:
                    self._api.put(self._writer, self._key(path), data, chunk_size=RANGE, max_concurrency=1)
                    return
                except (self._errors.GenericError, self._errors.NotFoundError):
                    if attempt == WRITES:
                        raise
                    time.sleep(2**attempt / 20)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the path below the URL, and the size in bytes, of each object below a folder."""
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
            text, low = " ".join(str(error).partition("Debug source:")[0].split())[:500], str(error).lower()
            missing = denied = False
            if cause := next((meaning for sign, meaning in CAUSES if sign in low), ""):
                cause = f"{cause} ({text})"
            elif missing := isinstance(error, known.NotFoundError | FileNotFoundError):
                cause = "there is no such object (404)"
            elif denied := isinstance(error, known.PermissionDeniedError) or "403 forbidden" in low:
                cause = f"access is denied (403): check the credentials and the policy of the bucket ({text})"
            where = f"{self.url}/{path}" if path else self.url
            raise RemoteError(f"{where}: {cause or text or type(error).__name__}", missing=missing, denied=denied) from None
