"""What a process knows of the objects that it prepares: listings, versions, copies in the cache, bytes on their way."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import FastDataError, PrepError
from fastdata.remote.bucket import NO_OBJECT
from fastdata.remote.cache import Cache
from fastdata.remote.objects import REQUESTS, Apart, Objects, Place, ReadsObjects, Version
from fastdata.remote.url import Storage, cache_default, parse_bytes, scheme, split_url

__all__ = [
    "FOLDER",
    "NO_FOLDERS",
    "WITHOUT_LISTS",
    "Session",
    "Tree",
    "carry_out",
    "drop_copies",
    "has_room",
    "here",
    "looking_anew",
]

FOLDER = -1  # the size of a folder
HELD = 2  # copies in the cache that no other process may remove
LONGEST_NAME = 100  # bytes of a name in the cache
INPUTS = "inputs"  # the folder in a cache that has the copies
WITHOUT_LISTS = "http", "https"
NO_FOLDERS = "{}:// does not list folders: give a tar, tars as 'shards-{{000..099}}.tar', a Parquet file, or a table of URLs"
FEW = 1000  # objects that are asked for one by one rather than listed, which takes a request for as many

_options = ContextVar[Storage]("options of clients")
_apart = True  # whether objects are read in a child
_expected: dict[str, Version] = {}  # of the plan, in a process that carries it out
_sessions: dict[tuple[int, str], Session] = {}


class _Folder(NamedTuple):
    files: dict[str, int]
    folders: set[str]


class Tree:
    """The folders and files below a URL. An empty object whose name is that of a folder stands for the folder."""

    def __init__(self, rows: Iterable[tuple[str, int]]) -> None:
        self._folders: dict[str, _Folder] = {}
        for path, size in rows:
            folder, _, name = path.rpartition("/")
            self._at(folder).files[name] = size
        for path in self._folders:
            folder, _, name = path.rpartition("/")
            if path and self._folders[folder].files.get(name) == 0:
                del self._folders[folder].files[name]

    def _at(self, path: str) -> _Folder:
        if path not in self._folders:
            self._folders[path] = _Folder({}, set())
            if path:
                folder, _, name = path.rpartition("/")
                self._at(folder).folders.add(name)
        return self._folders[path]

    def find(self, path: str) -> int | None:
        """Return the size of a file, FOLDER, or None."""
        folder, _, name = path.rpartition("/")
        if path and folder in self._folders and name in self._folders[folder].files:
            return self._folders[folder].files[name]
        return FOLDER if path in self._folders else None

    def entries(self, path: str) -> list[tuple[str, int]]:
        """Return the names in a folder, sorted, with the size of each file, or FOLDER."""
        folder = self._folders.get(path, _Folder({}, set()))
        return sorted([*folder.files.items(), *((name, FOLDER) for name in folder.folders)])


class Session:
    """Reads objects for one process. What is found once is remembered until `forget`.

    Args:
        storage: options of the client: endpoint, region and others.

    Attributes:
        versions: of the objects that were fetched whole. Those of the plan, in a process that carries it out.
    """

    def __init__(self, storage: Storage) -> None:
        self._objects: ReadsObjects = Apart(storage) if _apart else Objects(storage)
        self._storage = dict(storage)
        self._trees: dict[str, Tree] = {}
        self._found: dict[str, int | None] = {}
        self._held: OrderedDict[str, tuple[Path, int]] = OrderedDict()
        self._coming: dict[str, tuple[Future[bytes], int]] = {}
        self._lock = threading.RLock()
        self.versions = dict(_expected)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(REQUESTS)

    @cached_property
    def _cache(self) -> tuple[Path, int | None]:
        return _cache_place()

    def forget(self) -> None:
        """Look at everything anew."""
        self._trees.clear()
        self._found.clear()
        self.versions.clear()
        self.__dict__.pop("_cache", None)  # the environment may name another

    def close(self) -> None:
        """End the child, and let go of copies in the cache."""
        self._objects.close()
        with self._lock:
            self._let_go(0)

    # What is where

    def find(self, url: str) -> int | None:
        """Return the size of an object, FOLDER for a folder, or None for neither."""
        found = self.file(url)
        if found is None and self._listed(url) is None and scheme(url) not in WITHOUT_LISTS:
            return self.tree(url).find("")
        return found

    def file(self, url: str) -> int | None:
        """Return the size of an object; None if there is none. FOLDER is returned only for a folder that was listed."""
        inner = self._listed(url)
        if inner is not None:
            return inner[0].find(inner[1])
        if url not in self._found:
            self._ask([url])
        return self._found[url]

    def _ask(self, urls: Sequence[str]) -> None:
        named = [url for url in urls if split_url(url)[1]]  # a bucket is no object
        sizes = [None if version is None else version.size for version in self._objects.versions(named)]
        self._found.update({**dict.fromkeys(urls), **dict(zip(named, sizes, strict=True))})

    def look(self, urls: Iterable[str], folder: str = "") -> None:
        """Find out about many objects in few requests. folder: list it if most of them are there."""
        new = self._unknown(urls)
        if len(new) > FEW and folder and scheme(folder) not in WITHOUT_LISTS:
            self.tree(folder)
            new = self._unknown(new)
        self._ask(new)

    def _unknown(self, urls: Iterable[str]) -> list[str]:
        return [url for url in urls if url not in self._found and self._listed(url) is None]

    def _listed(self, url: str) -> tuple[Tree, str] | None:
        """Return the listing that covers a URL, and the path in it."""
        for root, tree in self._trees.items():
            if url == root or url.startswith(f"{root}/"):
                return tree, url[len(root) + 1 :]
        return None

    def tree(self, url: str) -> Tree:
        """List all objects below a URL.

        Raises:
            PrepError: it cannot be listed.
        """
        if url not in self._trees:
            if scheme(url) in WITHOUT_LISTS:
                raise PrepError(f"{url} cannot be listed: {NO_FOLDERS.format(scheme(url))}")
            self._trees[url] = Tree(row for part in self._objects.below(url) for row in part)
        return self._trees[url]

    def entries(self, url: str) -> list[tuple[str, int]]:
        """Return the names in a folder, sorted, with the size of each file, or FOLDER."""
        inner = self._listed(url)
        tree, path = (self.tree(url), "") if inner is None else inner
        return tree.entries(path)

    # Bytes

    def read(self, url: str) -> bytes:
        """Return the bytes of an object, which may have been requested."""
        inner = self._listed(url)
        if inner is not None and inner[0].find(inner[1]) is None:
            raise FileNotFoundError(errno.ENOENT, NO_OBJECT, url)
        with self._lock:
            coming = self._coming.get(url)
        return self._objects.read(url) if coming is None else coming[0].result()

    def request(self, url: str) -> None:
        """Ask for an object that is read soon. Each request has to be followed by `done`."""
        with self._lock:
            future, count = self._coming.get(url) or (self._pool.submit(self._objects.read, url), 0)
            self._coming[url] = future, count + 1

    def has_come(self, url: str) -> bool:
        """Return whether a requested object is here, or failed."""
        return self._coming[url][0].done()

    def wait(self, url: str) -> None:
        """Wait until a requested object is here, or failed."""
        self._coming[url][0].exception()

    def done(self, url: str) -> None:
        """Drop the bytes of an object unless others have requested it too."""
        with self._lock:
            future, count = self._coming.pop(url)
            if count > 1:
                self._coming[url] = future, count - 1

    def local(self, url: str) -> Path:
        """Return a copy of an object on a local disk. It stays until others have been asked for.

        Raises:
            FileNotFoundError: there is no such object.
            RemoteError: it cannot be read, or was replaced.
        """
        with self._lock:
            if url in self._held:
                self._held.move_to_end(url)
                return self._held[url][0]
            version = self._version(url)
            folder, limit = self._cache
            file = folder / _copy_name(url, version, self._storage)
            while (descriptor := _shared(file, version.size)) is None:
                self._let_go(0)  # of what would take its room
                self._objects.fetch(url, version, Place(file, folder, limit))
            self._let_go(HELD - 1)
            self._held[url] = file, descriptor
            return file

    def fetch_ahead(self, url: str) -> None:
        """Begin to make a copy of an object that is read later. Errors are those of whoever reads it."""

        def fetch() -> None:
            with suppress(FastDataError, OSError):
                folder, limit = self._cache
                version = self._version(url)
                self._objects.fetch(url, version, Place(folder / _copy_name(url, version, self._storage), folder, limit))

        threading.Thread(target=fetch, daemon=True).start()  # a worker that ends does not wait for it

    def _let_go(self, left: int) -> None:
        while len(self._held) > left:
            os.close(self._held.popitem(last=False)[1][1])

    def _version(self, url: str) -> Version:
        if url not in self.versions:
            (found,) = self._objects.versions([url])
            if found is None:
                raise FileNotFoundError(errno.ENOENT, NO_OBJECT, url)
            self.versions[url] = found
        return self.versions[url]

    def remove(self, url: str) -> None:
        """Remove the copy of an object that is not read again, unless another process reads it."""
        if url not in self.versions:
            return
        folder, _ = self._cache
        file = folder / _copy_name(url, self.versions[url], self._storage)
        with self._lock:
            _, descriptor = self._held.pop(url, (file, None))
            descriptor = _shared(file, self.versions[url].size) if descriptor is None else descriptor
            if descriptor is not None:
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file.unlink()
                os.close(descriptor)


def _copy_name(url: str, version: Version, storage: Mapping[str, object]) -> str:
    """Return where a copy lies in the cache. Its name ends as that of the object: libraries go by endings."""
    words = json.dumps([url, version, sorted(storage.items(), key=str)], default=str)
    digest = hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
    name = url.rpartition("/")[2].encode()[-LONGEST_NAME:].decode(errors="ignore")
    return f"{digest[:2]}/{digest[2:]}/{name}"


def _shared(file: Path, size: int) -> int | None:
    """Return the descriptor of a file that nobody can remove from the cache while it is open; None: it is not there.

    A file of another size was damaged since it was copied, and is removed.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            if os.fstat(descriptor).st_size == size:
                return descriptor
            file.unlink()
    os.close(descriptor)
    return None


def _cache_folder() -> Path:
    return Path(os.environ.get("FASTDATA_CACHE") or cache_default()).absolute() / INPUTS


def _cache_place() -> tuple[Path, int | None]:
    """Return the folder for copies of objects, and the most bytes in it: FASTDATA_CACHE, and FASTDATA_CACHE_SIZE or half of what
    is free now.
    """
    folder = _cache_folder()
    size = os.environ.get("FASTDATA_CACHE_SIZE")
    if size is not None:
        return folder, parse_bytes(size, "FASTDATA_CACHE_SIZE")
    cache = Cache(folder, kept="*/*/*")
    return folder, (shutil.disk_usage(folder).free + cache.used()) // 2


def has_room(size: int) -> bool:
    """Return whether the cache may take so many bytes."""
    limit = _cache_place()[1]
    return limit is None or size <= limit


def carry_out(versions: Mapping[str, tuple[int, str]], storage: Storage | None = None) -> None:
    """Read objects in this process from now on, which must not fork. Expect these versions, and take these options of clients."""
    global _apart, _expected
    _apart = False
    _options.set(storage or {})
    _expected = {url: Version(*found) for url, found in versions.items()}


@contextmanager
def looking_anew(storage: Storage | None = None) -> Iterator[None]:
    """Forget what was found before, and take these options of clients. The children of this process end with the context."""
    token = _options.set(storage or {})
    for session in _own():
        session.forget()
    try:
        yield
    except BaseException:
        if any(session.versions for session in _own()):
            drop_copies()
        raise
    finally:
        close()
        _options.reset(token)


def drop_copies() -> None:
    """Remove the copies of objects that no other process reads."""
    close()
    if _cache_folder().is_dir():
        Cache(_cache_folder(), kept="*/*/*").drop_unused()


def close() -> None:
    """End the children of this process, and let go of copies in the cache."""
    for session in _own():
        session.close()


def _own() -> list[Session]:
    return [session for (owner, _), session in _sessions.items() if owner == os.getpid()]


def here() -> Session:
    """Return the session of this process, with the options of clients of the context."""
    chosen = dict(_options.get({}))
    key = os.getpid(), json.dumps(chosen, sort_keys=True, default=str)
    if key not in _sessions:
        _sessions[key] = Session(chosen)
    return _sessions[key]
