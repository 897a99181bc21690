"""Inputs in object storage, with the methods of pathlib that listing and reading inputs use.

A `UrlPath` is read by range requests; a library that needs a file on a disk gets a copy, which lasts until the process copies
another object. In a URL, `#` and `?` are characters of a name.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastdata.errors import RemoteError, StoreError
from fastdata.remote.bucket import SCHEMES, Bucket, Storage, is_url, local_path, scheme, split_url
from fastdata.types import StrPath

FOLDER = -1  # the size of a folder
WITHOUT_LISTS = "http", "https"
REQUESTS = 32  # in flight
MAX_AHEAD, MAX_AHEAD_BYTES = 64, 64 << 20  # of inputs that a worker requests before it reads them
RANGE_BYTES, RANGES = 1 << 20, 4  # of a request, and how many are in flight while a file is read
MAX_HEADS = 1000  # objects that are asked for one by one rather than listed, which takes a request for as many

T = TypeVar("T")


class Client:
    """Lists and reads the objects of all buckets with one set of options, and remembers what it has listed.

    storage: options of obstore's clients. waiting: makes contexts for waits on the network. requested: objects that are read ahead.
    """

    def __init__(self, storage: Storage, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.waiting = waiting
        self.requested: dict[str, Future[bytes]] = {}
        self.pool = ThreadPoolExecutor(REQUESTS)
        self._storage = dict(storage)
        self._buckets: dict[str, Bucket] = {}
        self._listed: list[str] = []
        self._folders: dict[str, dict[str, int]] = {}  # the size of each file or FOLDER, by name, in each folder below those
        self._sizes: dict[str, int | None] = {}  # of the objects that were asked for one by one
        self.copies = ExitStack()
        self._copy = "", ""  # the URL and the path of the last one

    def at(self, url: str) -> tuple[Bucket, str]:
        """Return the bucket of an object, and its key there."""
        root, key = split_url(url)
        if root not in self._buckets:
            self._buckets[root] = Bucket(root, self._storage)
        return self._buckets[root], key

    def _is_listed(self, url: str) -> bool:
        return any(f"{url}/".startswith(f"{folder}/") for folder in self._listed)

    def listing(self, folder: str) -> dict[str, int]:
        """Map each name in a folder to its size, or to FOLDER. Everything below the folder is listed unless known."""
        if not self._is_listed(folder) and scheme(folder) not in WITHOUT_LISTS:
            bucket, key = self.at(folder)
            below = f"{key}/" if key else ""
            for path, size in bucket.list(key):
                if path.startswith(below):  # not an object "photos/", with which some programs mark a folder
                    url = f"{folder}/{path.removeprefix(below)}"
                    while url != folder:
                        above, _, name = url.rpartition("/")
                        known = self._folders.setdefault(above, {})
                        known[name] = min(size, known.get(name, size))  # an object with the name of a folder stands for that
                        url, size = above, FOLDER
            self._listed.append(folder)
        return self._folders.get(folder, {})

    def _ask_size(self, url: str) -> int | None:
        try:
            return self.stamp(url)[0] if scheme(url) and split_url(url)[1] else None  # an absolute path in a table; a bucket
        except RemoteError as error:
            if error.missing:
                return None
            raise

    def stamp(self, url: str) -> tuple[int, str]:
        """Return the size of an object, and a value that changes when it is replaced."""
        bucket, key = self.at(url)
        return bucket.stamp(key)

    def look(self, urls: Iterable[str], folder: str = "") -> None:
        """Look up many objects at once. folder: list it if there are too many objects to ask for one by one."""
        new = [url for url in urls if url not in self._sizes and not self._is_listed(url)]
        if len(new) > MAX_HEADS and folder:
            self.listing(folder)
            new = [url for url in new if not self._is_listed(url)]
        with self.waiting():
            self._sizes.update(zip(new, self.pool.map(self._ask_size, new), strict=True))

    def size(self, url: str, *, folders: bool = False) -> int | None:
        """Return an object's size, FOLDER for a folder, or None. folders: list the URL if it may be a folder."""
        if url in self._folders:
            return FOLDER
        if self._is_listed(url):
            folder, _, name = url.rpartition("/")
            return self._folders.get(folder, {}).get(name)
        self.look([url])
        if (size := self._sizes[url]) is not None:
            return size
        return FOLDER if folders and self.listing(url) else None

    def size_of_object(self, url: str) -> int:
        """Return the size of an object. Raise FileNotFoundError if there is none."""
        if (size := self.size(url)) in (None, FOLDER):
            raise _no_object(url)
        return size or 0

    def read(self, url: str) -> bytes:
        """Return the bytes of an object."""
        bucket, key = self.at(url)
        try:
            return bucket.read(key)
        except RemoteError as error:
            raise (_no_object(url) if error.missing else error) from None

    def copy(self, url: str) -> str:
        """Return the path of an object's copy on a local disk, which lasts until another is made."""
        if self._copy[0] != url:
            size, (bucket, key), self._copy = self.size_of_object(url), self.at(url), ("", "")
            self.copies.close()
            try:
                file = self.copies.enter_context(tempfile.TemporaryFile(prefix="fastdata-"))
                with self.waiting():
                    bucket.download(key, size, file.fileno())
            except OSError as error:
                where = f"{url} cannot be copied to {tempfile.gettempdir()}"
                raise StoreError(f"{where}: {error.strerror}; set TMPDIR to a folder on another disk") from None
            self._copy = url, f"/proc/self/fd/{file.fileno()}"
        return self._copy[1]


def _no_object(url: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such object", url)


_current = ContextVar[Client]("the client of URLs")
_opened = [Client({})]  # the last one is for threads that libraries start, which have no context


def _client() -> Client:
    return _current.get(_opened[-1])


def use_client(storage: Storage, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Set the client that reads URLs in this context; see Client."""
    _current.set(Client(storage, waiting))


@contextmanager
def reading_urls(storage: Storage | None = None) -> Iterator[None]:
    """Read URLs in this context with these options of clients."""
    client = Client(storage or {})
    token = _current.set(client)
    _opened.append(client)
    try:
        yield
    finally:
        _current.reset(token)
        _opened.remove(client)
        client.copies.close()
        client.pool.shutdown(cancel_futures=True)


def waiting() -> AbstractContextManager[None]:
    """Return a context in which to wait for another process: it stops the clock of a worker's timeout."""
    return _client().waiting()


class UrlFile(io.RawIOBase):
    """An object that is read by range requests, several at a time."""

    def __init__(self, client: Client, url: str) -> None:
        self._client, (self._bucket, self._key) = client, client.at(url)
        self._size, self._offset = client.size_of_object(url), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        begin, end = self._offset, min(self._offset + len(buffer), self._size)

        def copy(start: int) -> None:
            stop = min(start + RANGE_BYTES, end)
            buffer[start - begin : stop - begin] = self._bucket.read_range(self._key, start, stop - start)

        with self._client.waiting():
            list(self._client.pool.map(copy, range(begin, end, RANGE_BYTES)))
        self._offset = max(begin, end)
        return max(end - begin, 0)


class UrlPath(PurePosixPath):
    """The path of an object, or of a folder of objects. Its text is the URL. `os.fspath`, and so builtin `open`, makes a copy."""

    def __str__(self) -> str:
        return re.sub("^([^/]*:)/", r"\1//", posixpath.normpath(super().__str__()))  # pathlib joins slashes

    def __fspath__(self) -> str:
        return _client().copy(str(self))

    @property
    def parents(self) -> Sequence[UrlPath]:
        return [path for path in super().parents if len(path.parts) > 1]  # the scheme, and the bucket

    def resolve(self) -> UrlPath:  # numpy.memmap calls it
        return self

    absolute = resolve

    def _find(self, *, folders: bool = True) -> int | None:
        """Return the size of an object, FOLDER for a folder, or None if there is neither or access is denied."""
        try:
            return _client().size(str(self), folders=folders)
        except RemoteError as error:
            if error.denied:
                return None
            raise

    def exists(self) -> bool:
        return self._find() is not None

    def is_dir(self) -> bool:
        return self._find() == FOLDER

    def is_file(self) -> bool:
        return self._find(folders=False) not in (None, FOLDER)

    def look(self) -> tuple[int, str]:
        """Do what `sources.files.look` does."""
        size = _client().size(str(self))
        return (-1, "missing") if size is None else (-1, "not-a-file") if size == FOLDER else (size, "")

    def scan(self) -> list[UrlPath]:
        """Return the entries of a folder, sorted by name."""
        return [self / name for name in sorted(_client().listing(str(self)))]

    def glob(self, pattern: str) -> Iterator[UrlPath]:
        """Yield the paths that match a pattern, sorted by name."""
        first, _, rest = pattern.partition("/")
        for path in self.scan():
            if fnmatchcase(path.name, first) and path.name.startswith(".") == first.startswith("."):
                yield from [path] if not rest else path.glob(rest) if path.is_dir() else ()

    def read_bytes(self) -> bytes:
        client, url = _client(), str(self)
        with client.waiting():
            return client.requested[url].result() if url in client.requested else client.read(url)

    def stat(self) -> os.stat_result:
        return Path(os.fspath(self)).stat()

    def open(self, mode: str = "r", **options: Any) -> Any:
        """Open the object for reading, by range requests."""
        file = io.BufferedReader(UrlFile(_client(), str(self)), RANGES * RANGE_BYTES)
        return file if "b" in mode else io.TextIOWrapper(file, **options)


AnyPath = Path | UrlPath


def state_of(path: AnyPath) -> Any:
    """Return a value that changes when a file is replaced; for a URL, one that changes with each run."""
    if isinstance(path, UrlPath):
        return _client()
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def stamps_of(paths: Sequence[AnyPath]) -> list[tuple[int, str]]:
    """Return the size of each file, and its modification time, or the ETag of an object."""
    client = _client()
    if objects := [str(path) for path in paths if isinstance(path, UrlPath)]:
        with client.waiting():
            return [*client.pool.map(client.stamp, objects)]
    return [(info.st_size, str(info.st_mtime_ns)) for info in (path.stat() for path in paths)]


def seekable(path: AnyPath) -> Any:
    """Return the path for pyarrow to open, or for a URL a file object that is read by range requests."""
    return path.open("rb") if isinstance(path, UrlPath) else path


def to_path(where: StrPath) -> AnyPath:
    """Return the path that a caller means: a UrlPath for a URL. Raise ValueError for an unknown scheme, or http:// with a query."""
    if isinstance(where, UrlPath | Path):
        return where
    if not is_url(where):
        return Path(where)
    url = str(where)
    if scheme(url) == "file":
        return local_path(url)
    if scheme(url) in WITHOUT_LISTS and "?" in url:
        raise ValueError(f"{url.partition('?')[0]}?... has a query, as signed URLs do, so it is not read: leave the query out")
    return UrlPath(url)


def explain_missing(path: AnyPath) -> str:
    """Return a hint on why a path does not exist: its server cannot list folders, or denies access."""
    if scheme(str(path)) in WITHOUT_LISTS:
        instead = "instead of a folder, give a file, or, for images, tars as 'shards-{000..099}.tar' or a table of URLs"
        return f"; {scheme(str(path))}:// does not list folders: {instead}"
    return "; perhaps access is denied: check the credentials and the policy of the bucket" if isinstance(path, UrlPath) else ""


def join(root: AnyPath, name: str) -> AnyPath:
    """Return the path of an input, whose name may be a URL."""
    return to_path(name) if "://" in name and scheme(name) in SCHEMES else root / name


def look_at_all(root: AnyPath, names: Iterable[str]) -> None:
    """Look up many inputs at once, so that looking at each takes no request. Their names may be URLs."""
    if isinstance(root, UrlPath):
        _client().look([str(join(root, name)) for name in names], str(root))
    elif urls := [name for name in names if "://" in name and isinstance(join(root, name), UrlPath)]:
        _client().look(urls)


def read_ahead(items: Iterable[tuple[T, Iterable[AnyPath], int]]) -> Iterator[T]:
    """Yield the items of (item, paths of its files, size in bytes), while requesting the objects of the next ones."""
    queue, client, rest = deque[tuple[T, list[str], int]](), _client(), iter(items)
    while True:
        while len(queue) < MAX_AHEAD and sum(size for _, _, size in queue) < MAX_AHEAD_BYTES:
            if (found := next(rest, None)) is None:
                break
            urls = [str(path) for path in found[1] if isinstance(path, UrlPath)]
            client.requested.update({url: client.pool.submit(client.read, url) for url in urls})
            queue.append((found[0], urls, found[2]))
        if not queue:
            return
        item, urls, _ = queue.popleft()
        yield item
        for url in urls:
            client.requested.pop(url, None)
