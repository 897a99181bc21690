"""Inputs in object storage, with the methods of pathlib that listing and reading inputs use.

`to_path` returns a `UrlPath` for a URL. It is opened by range requests; a library that needs a file of a disk gets a copy, which is
removed when the process has turned to other files. A URL is text: `#` and `?` are characters of a name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import posixpath
import re
import tempfile
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from fastdata.errors import PrepError, RemoteError, StoreError
from fastdata.remote.bucket import Bucket, is_plain
from fastdata.remote.url import SCHEMES, Storage, is_url, local_path, scheme, split_url

__all__ = [
    "AnyPath",
    "UrlEntry",
    "UrlPath",
    "explain_missing",
    "is_inside",
    "join",
    "look_at_all",
    "read_ahead",
    "read_planned",
    "reading_urls",
    "seekable",
    "to_path",
    "versions_of",
    "waiting",
]

FOLDER = -1  # the size of a folder
WITHOUT_LISTS = "http", "https"
REQUESTS = 32  # in flight
TRIES = 5  # to get the right bytes
MD5 = re.compile("[0-9a-f]{32}")  # the ETag of an object that was written at once, and not encrypted with a key of its own
MAX_COPIES = 2  # of a process: of objects that libraries read from a disk
MAX_AHEAD_FILES, MAX_AHEAD_BYTES = 64, 64 << 20  # that a worker requests before it reads them
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 16, 16 << 20  # of a request for a range, which grows while a file is read in order
MAX_HEADS = 1000  # objects that are asked for one by one rather than listed, which takes a request for as many

T = TypeVar("T")

_storage = ContextVar[Storage]("options of clients")
_clients: dict[str, Client] = {}
_waiting: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while a worker waits for the network
_planned: dict[str, Version] = {}  # the versions of the plan, in a worker


class Version(NamedTuple):
    """The size of an object in bytes, and what changes when it is replaced: its ETag, or its time."""

    size: int
    tag: str


class Listing:
    """The objects below a URL as folders and files. An empty object with the name of a folder stands for the folder."""

    def __init__(self, rows: Iterable[tuple[str, int]]) -> None:
        rows = sorted(rows)
        self._names = [name for name, _ in rows]
        self._sizes = [size for _, size in rows]

    def _is_folder(self, path: str) -> bool:
        k = bisect_left(self._names, f"{path}/" if path else "")
        return k < len(self._names) and self._names[k].startswith(f"{path}/" if path else "")

    def find(self, path: str) -> int | None:
        """Return the size of a file, FOLDER, or None."""
        if self._is_folder(path):
            return FOLDER
        k = bisect_left(self._names, path)
        return self._sizes[k] if k < len(self._names) and self._names[k] == path else None

    def entries(self, path: str) -> Iterator[tuple[str, int]]:
        """Yield the names in a folder, with the size of each file, or FOLDER."""
        above = f"{path}/" if path else ""
        k = bisect_left(self._names, above)
        while k < len(self._names) and self._names[k].startswith(above):
            name, slash, _ = self._names[k][len(above) :].partition("/")
            if slash:
                yield name, FOLDER
                k = bisect_left(self._names, f"{above}{name}0")  # "0" follows "/"
            else:
                if name and not self._is_folder(above + name):
                    yield name, self._sizes[k]
                k += 1


class Client:
    """Lists and reads the objects of all buckets with one set of options. What is found once is remembered.

    Attributes:
        versions: of the objects that were opened; in a worker those of the plan.
        denied: what the server said of objects that may not be looked at.
        requested: the bytes of objects that are read soon.
        reading: the URL and the file of the object of which ranges were read last.
        pool: threads for requests.
    """

    def __init__(self, storage: Storage) -> None:
        self.versions = dict(_planned)
        self.denied: dict[str, str] = {}
        self.requested: dict[str, Future[bytes]] = {}
        self.reading: tuple[str, io.BufferedReader] | None = None
        self.pool = ThreadPoolExecutor(REQUESTS)
        self._requests = ThreadPoolExecutor(REQUESTS)  # of what runs in `pool`
        self._storage = dict(storage)
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()
        self._listings: dict[str, Listing] = {}
        self._looked_at: dict[str, Version | None] = {}
        self._copies: OrderedDict[str, tuple[Path, int]] = OrderedDict()

    def close(self) -> None:
        """End its threads, and remove the copies that no other process reads."""
        self.drop_copies()
        for pool in (self.pool, self._requests):
            pool.shutdown(cancel_futures=True)

    def _at(self, url: str) -> tuple[Bucket, str]:
        root, key = split_url(url)
        with self._lock:
            if root not in self._buckets:
                self._buckets[root] = Bucket(root, self._storage)
            return self._buckets[root], key

    # What is where

    def listing(self, url: str) -> tuple[Listing, str]:
        """Return the listing that covers a URL, and the path in it; list what is below it unless that is known."""
        if (known := self._listed(url)) is not None:
            return known
        if scheme(url) in WITHOUT_LISTS:
            raise PrepError(f"{url} cannot be listed{explain_missing(UrlPath(self, url))}")
        bucket, key = self._at(url)
        below = f"{key}/" if key else ""
        names = ((name.removeprefix(below), size) for name, size in bucket.list(key) if name.startswith(below))
        self._listings[url] = Listing(names)  # without an object "photos/", with which some programs mark a folder
        return self._listings[url], ""

    def _listed(self, url: str) -> tuple[Listing, str] | None:
        for root, listing in self._listings.items():
            if url == root or url.startswith(f"{root}/"):
                return listing, url[len(root) + 1 :]
        return None

    def _version(self, url: str) -> Version | None:
        bucket, key = self._at(url)
        try:
            return Version(*bucket.version(key)) if key else None  # a bucket is no object
        except RemoteError as error:
            if error.missing:
                return None
            raise

    def look(self, urls: Iterable[str], folder: str = "") -> None:
        """Find out about many objects at once. folder: list it if there are more than one would ask for one by one."""
        new = [url for url in urls if url not in self._looked_at and self._listed(url) is None]
        if len(new) > MAX_HEADS and folder and scheme(folder) not in WITHOUT_LISTS:
            self.listing(folder)
            new = [url for url in new if self._listed(url) is None]
        self._looked_at.update(zip(new, self.pool.map(self._version, new), strict=True))

    def size(self, url: str) -> int | None:
        """Return the size of an object; None if there is none. FOLDER is returned only for a folder that was listed."""
        if (known := self._listed(url)) is not None:
            return known[0].find(known[1])
        self.look([url])
        version = self._looked_at[url]
        return None if version is None else version.size

    def find(self, url: str, *, folders: bool = True) -> int | None:
        """Return the size of an object, FOLDER for a folder, or None for neither, or for what may not be looked at.

        folders: whether to list what is below, if it is no object.
        """
        try:
            size = self.size(url)
            if size is None and folders and self._listed(url) is None and scheme(url) not in WITHOUT_LISTS:
                return self.listing(url)[0].find("")
        except RemoteError as error:
            if not error.denied:
                raise
            self.denied[url] = str(error)
            return None
        return size

    # Bytes

    def read(self, url: str) -> bytes:
        """Return the bytes of an object.

        Raises:
            FileNotFoundError: there is no such object.
            RemoteError: it cannot be read. So do the other methods.
        """
        if (known := self._listed(url)) is not None and known[0].find(known[1]) is None:
            raise _no_object(url)
        bucket, key = self._at(url)
        before = b""
        for _ in range(TRIES):
            try:
                data, tag = bucket.read_tagged(key)
            except RemoteError as error:
                if error.missing:
                    raise _no_object(url) from None
                raise
            if data == before or not self._is_damaged(url, tag, data):
                return data
            before = data
        raise RemoteError(f"{url} came {TRIES} times with different bytes: the network changes them")

    def _is_damaged(self, url: str, tag: str, data: bytes) -> bool:
        """Return whether bytes that came without TLS are not those whose MD5 is the tag; not all tags are one."""
        wanted = tag.strip('"').lower()
        if not MD5.fullmatch(wanted) or not is_plain(split_url(url)[0], self._storage):
            return False
        return hashlib.md5(data, usedforsecurity=False).hexdigest() != wanted

    def read_range(self, url: str, start: int, length: int) -> memoryview:
        """Return a range of the bytes of an object."""
        bucket, key = self._at(url)
        return bucket.read_range(key, start, length)

    def opened(self, url: str) -> Version:
        """Return the version of an object that is opened, and note it for the plan; in a worker, it has to be that of the plan."""
        with _waiting():
            now = self._version(url)
        known = self.versions.get(url, now)
        if known is None:
            raise _no_object(url)
        if now != known:
            what = "is gone" if now is None else f"was replaced: it had {known.size} bytes, and has {now.size} now"
            raise RemoteError(f"{url} {what}; leave SOURCE alone while it is prepared, and plan again, to another OUT")
        self.versions[url] = known
        return known

    def copy(self, url: str) -> Path:
        """Return a copy of an object on a disk of this machine, which processes share. It stays until others are asked for."""
        if url in self._copies:
            self._copies.move_to_end(url)
            return self._copies[url][0]
        version = self.opened(url)
        self.drop_copies(MAX_COPIES - 1)
        digest = hashlib.blake2b(json.dumps([url, version]).encode(), digest_size=16).hexdigest()
        file = _copies_folder() / digest / url.rpartition("/")[2].encode()[-100:].decode(errors="ignore")  # libraries go by endings
        while True:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
                with _waiting():
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    if not file.exists():
                        fcntl.flock(lock, fcntl.LOCK_EX)
                        if _is_at(file.parent, lock) and not file.exists():  # another process may have removed or made it
                            self._download(url, version.size, file)
                        fcntl.flock(lock, fcntl.LOCK_SH)
                    if _is_at(file.parent, lock) and file.exists():
                        self._copies[url] = file, lock
                        return file
                os.close(lock)
            except OSError as error:
                raise StoreError(f"{url} cannot be copied to {file}: {error.strerror}; TMPDIR names another disk") from None

    def _download(self, url: str, size: int, file: Path) -> None:
        bucket, key = self._at(url)
        temporary = file.with_name("unfinished.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            bucket.download(key, size, descriptor, self._requests)
            temporary.replace(file)
        finally:
            os.close(descriptor)

    def drop_copies(self, left: int = 0) -> None:
        """Let go of all copies but the last ones, and remove those that no other process reads."""
        while len(self._copies) > left:
            file, lock = self._copies.popitem(last=False)[1]
            _remove_unused(file.parent, lock)


def _no_object(url: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such object", url)


def _copies_folder() -> Path:
    return Path(tempfile.gettempdir(), f"fastdata-{os.getuid()}", "copies")


def _is_at(folder: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    return False


def _remove_unused(folder: Path, lock: int) -> None:
    """Remove a copy unless another process reads it, and close the descriptor of its folder."""
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    os.close(lock)


@contextmanager
def reading_urls(storage: Storage | None = None) -> Iterator[None]:
    """Read URLs in this context with these options of clients. At its end, the clients are closed and the copies are removed, also
    those of processes that were killed, but not those that other processes read.
    """
    token = _storage.set(storage or {})
    try:
        yield
    finally:
        _storage.reset(token)
        used = bool(_clients)
        while _clients:
            _clients.popitem()[1].close()
        for folder in _copies_folder().glob("*") if used else ():
            with suppress(OSError):
                _remove_unused(folder, os.open(folder, os.O_RDONLY | os.O_CLOEXEC))


def read_planned(
    versions: Mapping[str, Sequence[Any]], storage: Storage, waiting: Callable[[], AbstractContextManager[None]]
) -> None:
    """Read the objects of a plan in this process.

    Args:
        versions: of the objects that were opened when it was made; others are errors.
        storage: options of clients.
        waiting: entered while this process waits for the network.
    """
    global _waiting, _planned
    _waiting, _planned = waiting, {url: Version(*version) for url, version in versions.items()}
    _storage.set(storage)


def waiting() -> AbstractContextManager[None]:
    """Return what to enter while this process waits for another: in a worker, its clock of decoders that hang stands still."""
    return _waiting()


def _client() -> Client:
    """Return the client with the options of the context."""
    storage = dict(_storage.get({}))
    key = json.dumps(storage, sort_keys=True, default=str)
    if key not in _clients:
        _clients[key] = Client(storage)
    return _clients[key]


class UrlFile(io.RawIOBase):
    """An object that is read by range requests. While it is read in order, they grow, and the next is on its way."""

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url = client, url
        self._size = client.opened(url).size
        self._place = self._start = 0
        self._block = b""
        self._next: tuple[int, Future[bytes]] | None = None
        self._length = MIN_BLOCK_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._place)
        if wanted <= 0:
            return 0
        if not self._start <= self._place < self._start + len(self._block):
            self._fetch(wanted)
        begin = self._place - self._start
        data = self._block[begin : begin + wanted]
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def _fetch(self, wanted: int) -> None:
        """Read the block that begins here."""
        in_order = self._place == self._start + len(self._block)
        self._length = min(2 * self._length, MAX_BLOCK_BYTES) if in_order else MIN_BLOCK_BYTES
        coming, self._next = self._next, None
        with _waiting():
            if coming is not None and coming[0] == self._place:
                block = coming[1].result()
            else:
                block = self._request(self._place, max(wanted, self._length))
        self._start, self._block = self._place, block
        after = self._start + len(block)
        if in_order and after < self._size:
            self._next = after, self._client.pool.submit(self._request, after, self._length)

    def _request(self, start: int, length: int) -> bytes:
        return bytes(self._client.read_range(self._url, start, min(length, self._size - start)))


class UrlPath(os.PathLike[str]):
    """The path of an object, or of a folder of objects. Text is the URL. `os.fspath`, and so `open`, make a copy on a disk."""

    __slots__ = ("_client", "_size", "url")

    def __init__(self, client: Client, url: str, size: int | None = None) -> None:
        self._client = client
        self.url = url.rstrip("/")
        self._size = size

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"UrlPath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and other.url == self.url

    def __lt__(self, other: UrlPath) -> bool:
        return self.url < other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __fspath__(self) -> str:
        return os.fspath(self._client.copy(self.url))

    @property
    def _root(self) -> int:
        """The length of the URL of the bucket."""
        start = self.url.index("://") + 3
        return start + len(self.url[start:].partition("/")[0])

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> UrlPath:
        return self.at(self.url[: max(self.url.rfind("/"), self._root)])

    @property
    def parents(self) -> list[UrlPath]:
        paths = [self]
        while (above := paths[-1].parent) != paths[-1]:
            paths.append(above)
        return paths[1:]

    def __truediv__(self, name: str | os.PathLike[str]) -> UrlPath:
        text = str(name)
        if scheme(text) in SCHEMES:
            return self.at(text)
        start = self._root
        return self.at(self.url[:start] + posixpath.normpath(posixpath.join(self.url[start:] or "/", text)))

    def at(self, url: str) -> UrlPath:
        """Return another path, read with the same options."""
        return UrlPath(self._client, url)

    def relative_to(self, other: AnyPath) -> PurePosixPath:
        if not is_inside(self, other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.url[len(str(other)) + 1 :])

    def absolute(self) -> UrlPath:
        return self

    def resolve(self) -> UrlPath:  # numpy.memmap calls it
        return self

    def exists(self) -> bool:
        return self._client.find(self.url) is not None

    def is_dir(self) -> bool:
        return self._client.find(self.url) == FOLDER

    def is_file(self) -> bool:
        return self._client.find(self.url, folders=False) not in (None, FOLDER)

    def look(self) -> tuple[int, str]:
        """Return the size in bytes and ""; or -1 and why it cannot be used. The answers are those of `sources.inputs.look`."""
        size = self._size if self._size is not None else self._client.size(self.url)
        if size is None:
            return -1, "missing"
        return (-1, "not-a-file") if size == FOLDER else (size, "")

    def scan(self) -> list[UrlEntry]:
        """Return what a folder holds, sorted by name."""
        listing, path = self._client.listing(self.url)
        return [UrlEntry(self, name, size) for name, size in sorted(listing.entries(path))]

    def glob(self, pattern: str) -> Iterator[UrlPath]:
        """Yield what matches a pattern, as `glob.glob(recursive=True)` does; nothing where folders cannot be listed."""
        if scheme(self.url) not in WITHOUT_LISTS:
            yield from sorted(_matching(self, pattern.split("/")))

    def read_bytes(self) -> bytes:
        if (coming := self._client.requested.get(self.url)) is not None:
            return coming.result()
        with _waiting():
            return self._client.read(self.url)

    def read_range(self, offset: int, length: int) -> bytes:
        """Return bytes of an object, which stays open until those of another one are read."""
        client = self._client
        if client.reading is None or client.reading[0] != self.url:
            client.reading = self.url, self.open("rb")
        client.reading[1].seek(offset)
        data: bytes = client.reading[1].read(length)
        return data

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", **options: Any) -> Any:
        """Open it for reading, by range requests."""
        file = io.BufferedReader(UrlFile(self._client, self.url), 1 << 20)
        return file if "b" in mode else io.TextIOWrapper(file, **options)

    def stat(self) -> Any:
        """Return the size, and what changes when the object is replaced, with the names that `os.stat` has for both."""
        size, tag = self._client.versions.get(self.url) or self._client.opened(self.url)
        return SimpleNamespace(st_dev=0, st_ino=0, st_size=size, st_mtime_ns=tag)


AnyPath = Path | UrlPath


class UrlEntry:
    """What a folder holds, with the attributes of `os.DirEntry`."""

    __slots__ = ("_folder", "_size", "name")

    def __init__(self, folder: UrlPath, name: str, size: int) -> None:
        self._folder = folder
        self.name = name
        self._size = size

    @property
    def path(self) -> UrlPath:
        return UrlPath(self._folder._client, f"{self._folder.url}/{self.name}", self._size)

    def is_dir(self) -> bool:
        return self._size == FOLDER

    def is_symlink(self) -> bool:
        return False


def _matching(folder: UrlPath, parts: Sequence[str]) -> Iterator[UrlPath]:
    first, *rest = parts
    entries = [entry for entry in folder.scan() if not entry.name.startswith(".") or first.startswith(".")]
    if first == "**":
        if rest:
            yield from _matching(folder, rest)
        for entry in entries:
            if entry.is_dir():
                yield from _matching(entry.path, parts)
            elif not rest:
                yield entry.path
        return
    for entry in entries:
        if fnmatchcase(entry.name, first):
            if not rest:
                yield entry.path
            elif entry.is_dir():
                yield from _matching(entry.path, rest)


def seekable(path: AnyPath) -> Any:
    """Return what pyarrow opens to read some of a file: the path, or an object that is read by range requests."""
    return path.open("rb") if isinstance(path, UrlPath) else path


def to_path(where: str | os.PathLike[str]) -> AnyPath:
    """Return the path that a caller means: a UrlPath for a URL.

    Raises:
        ValueError: it is a URL of an unknown scheme, or of http:// with a query.
    """
    if isinstance(where, UrlPath | Path):
        return where
    if not is_url(where):
        return Path(where)
    url = str(where)
    if scheme(url) == "file":
        return local_path(url)
    if scheme(url) in WITHOUT_LISTS and "?" in url:
        raise ValueError(
            f"{url.partition('?')[0]}?... is a URL with a query, such as a signed one, which is not read: give it without"
        )
    return UrlPath(_client(), url)


def explain_missing(path: AnyPath) -> str:
    """Return a hint for a path that does not exist: that its server cannot list folders, or what it said."""
    if not isinstance(path, UrlPath):
        return ""
    if (words := path._client.denied.get(path.url)) is not None:
        return f", or may not be read: {words}"
    if scheme(path.url) not in WITHOUT_LISTS:
        return ""
    return (
        f"; {scheme(path.url)}:// does not list folders: give a tar, tars as 'shards-{{000..099}}.tar', a Parquet file, or a table "
        "of URLs"
    )


def is_inside(path: AnyPath, folder: AnyPath) -> bool:
    """Return whether a path is that of a folder, or below it. Links are resolved."""
    if isinstance(path, Path) and isinstance(folder, Path):
        return path.resolve().is_relative_to(folder.resolve())
    return isinstance(path, UrlPath) and isinstance(folder, UrlPath) and f"{path}/".startswith(f"{folder}/")


def join(root: AnyPath, name: str) -> AnyPath:
    """Return the path of an input, whose name may be a URL."""
    return to_path(name) if "://" in name and scheme(name) in SCHEMES else root / name


def look_at_all(root: AnyPath, names: Iterable[str]) -> None:
    """Find out about many inputs at once, so that looking at each takes no request. Their names may be URLs."""
    if isinstance(root, UrlPath):
        root._client.look([str(join(root, name)) for name in names], root.url)
    elif urls := [name for name in names if "://" in name and isinstance(join(root, name), UrlPath)]:
        _client().look(urls)


def read_ahead(items: Iterable[T], wanted: Callable[[T], Iterable[AnyPath]], size: Callable[[T], int]) -> Iterator[T]:
    """Yield items in order, each when the objects that it needs are here or have failed; those of the next are on their way.

    Args:
        wanted: the paths whose bytes are read for an item.
        size: about how many bytes these are.
    """
    queue = deque[tuple[T, list[UrlPath]]]()
    files = total = 0

    def first() -> Iterator[T]:
        item, paths = queue.popleft()
        with _waiting():
            for path in paths:
                path._client.requested[path.url].exception()
        yield item
        for path in paths:
            if not any(path in later for _, later in queue):
                del path._client.requested[path.url]

    for item in items:
        paths = list(dict.fromkeys(path for path in wanted(item) if isinstance(path, UrlPath)))
        for path in paths:
            client = path._client
            if path.url not in client.requested:
                client.requested[path.url] = client.pool.submit(client.read, path.url)
        queue.append((item, paths))
        files += len(paths) or 1
        total += size(item)
        while files >= MAX_AHEAD_FILES or total >= MAX_AHEAD_BYTES:
            files -= len(queue[0][1]) or 1
            total -= size(queue[0][0])
            yield from first()
    while queue:
        yield from first()


def versions_of(roots: Iterable[AnyPath]) -> dict[str, tuple[int, str]]:
    """Return the versions of the objects that were opened with the options of these roots."""
    clients = [root._client for root in roots if isinstance(root, UrlPath)]
    return {url: (version.size, version.tag) for client in clients for url, version in client.versions.items()}
