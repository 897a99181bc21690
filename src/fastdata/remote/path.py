"""Paths of inputs: on a disk, or in object storage with the methods of pathlib that listing and reading inputs use."""

from __future__ import annotations

import os
import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastdata.remote.session import FOLDER, NO_FOLDERS, WITHOUT_LISTS, Session, drop_copies, here
from fastdata.remote.url import SCHEMES, is_url, local_path, scheme

__all__ = [
    "AnyPath",
    "RemoteEntry",
    "RemotePath",
    "dropping_copies",
    "fetch_ahead",
    "fetched",
    "is_inside",
    "join",
    "look_at_all",
    "no_folders",
    "read_ahead",
    "read_once",
    "to_path",
    "versions_of",
]

MOST_FILES, MOST_BYTES = 64, 64 << 20  # that a worker requests ahead

T = TypeVar("T")


class RemotePath(os.PathLike[str]):
    """The path of an object, or of a folder of objects.

    Text is the URL. As a path of the file system (`os.fspath`, and so for `open` and for libraries), it is that of a copy in the
    cache, which is made when it is asked for. `read_bytes` makes none.
    """

    __slots__ = ("_size", "session", "url")

    def __init__(self, session: Session, url: str, size: int | None = None) -> None:
        self.session = session
        self.url = url.rstrip("/")
        self._size = size

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __lt__(self, other: RemotePath) -> bool:
        return self.url < other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __fspath__(self) -> str:
        return os.fspath(self.session.local(self.url))

    # Names

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
    def parent(self) -> RemotePath:
        return RemotePath(self.session, self.url[: max(self.url.rfind("/"), self._root)])

    @property
    def parents(self) -> list[RemotePath]:
        found = [self]
        while (above := found[-1].parent) != found[-1]:
            found.append(above)
        return found[1:]

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        text = str(name)
        if scheme(text) in SCHEMES:
            return RemotePath(self.session, text)
        start = self._root
        return RemotePath(self.session, self.url[:start] + posixpath.normpath(posixpath.join(self.url[start:] or "/", text)))

    def at(self, url: str) -> RemotePath:
        """Return another path, read with the same options."""
        return RemotePath(self.session, url)

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        return self.parent / (self.stem + suffix)

    def relative_to(self, other: AnyPath) -> PurePosixPath:
        if not is_inside(self, other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.url[len(str(other)) + 1 :])

    def absolute(self) -> RemotePath:
        return self

    def resolve(self) -> RemotePath:  # numpy.memmap calls it
        return self

    # What is there

    def exists(self) -> bool:
        return self.session.find(self.url) is not None

    def is_dir(self) -> bool:
        return self.session.find(self.url) == FOLDER

    def is_file(self) -> bool:
        found = self.session.file(self.url)
        return found is not None and found != FOLDER

    def look(self) -> tuple[int, str]:
        """Return the size in bytes and ""; or -1 and why it cannot be used. The answers are those of `sources.inputs.look`."""
        found = self._size if self._size is not None else self.session.file(self.url)
        if found is None:
            return -1, "missing"
        return (-1, "not-a-file") if found == FOLDER else (found, "")

    def scan(self) -> list[RemoteEntry]:
        """Return what a folder holds, sorted by name."""
        return [RemoteEntry(self, name, size) for name, size in self.session.entries(self.url)]

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield what matches a pattern, as `glob.glob(recursive=True)` does; nothing where folders cannot be listed."""
        if scheme(self.url) not in WITHOUT_LISTS:
            yield from sorted(_matching(self, pattern.split("/")))

    # Bytes

    def read_bytes(self) -> bytes:
        return self.session.read(self.url)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open(encoding=encoding, errors=errors) as file:
            text: str = file.read()
        return text

    def open(self, mode: str = "r", **options: Any) -> Any:
        return open(self, mode, **options)

    def stat(self) -> os.stat_result:
        """Return the state of the copy in the cache."""
        return os.stat(self)


AnyPath = Path | RemotePath


class RemoteEntry:
    """What a folder holds, with the attributes of `os.DirEntry`."""

    __slots__ = ("_folder", "_size", "name")

    def __init__(self, folder: RemotePath, name: str, size: int) -> None:
        self._folder = folder
        self.name = name
        self._size = size

    @property
    def path(self) -> RemotePath:
        return RemotePath(self._folder.session, f"{self._folder.url}/{self.name}", self._size)

    def is_dir(self) -> bool:
        return self._size == FOLDER

    def is_symlink(self) -> bool:
        return False


def _matching(folder: RemotePath, parts: Sequence[str]) -> Iterator[RemotePath]:
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


def to_path(where: str | os.PathLike[str]) -> AnyPath:
    """Return the path that a caller means: a RemotePath for a URL.

    Raises:
        ValueError: it is a URL of an unknown scheme, or has a query.
    """
    if isinstance(where, RemotePath | Path):
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
    return RemotePath(here(), url)


def no_folders(path: AnyPath) -> str:
    """Return a hint for a path that does not exist, if it may be a folder on a server that cannot list it."""
    if isinstance(path, RemotePath) and scheme(path.url) in WITHOUT_LISTS:
        return f"; {NO_FOLDERS.format(scheme(path.url))}"
    return ""


def is_inside(path: AnyPath, folder: AnyPath) -> bool:
    """Return whether a path is that of a folder, or below it. Links are resolved."""
    if isinstance(path, Path) and isinstance(folder, Path):
        return path.resolve().is_relative_to(folder.resolve())
    return isinstance(path, RemotePath) and isinstance(folder, RemotePath) and f"{path}/".startswith(f"{folder}/")


def join(root: AnyPath, name: str) -> AnyPath:
    """Return the path of an input, whose name may be a URL."""
    return to_path(name) if "://" in name and scheme(name) in SCHEMES else root / name


def look_at_all(root: AnyPath, names: Iterable[str]) -> None:
    """Find out about many inputs at once, so that looking at each takes no request. Their names may be URLs."""
    if isinstance(root, RemotePath):
        root.session.look([str(join(root, name)) for name in names], root.url)
    elif urls := [name for name in names if "://" in name and isinstance(join(root, name), RemotePath)]:
        here().look(urls)


def read_ahead(
    items: Iterable[T], wanted: Callable[[T], Iterable[AnyPath]], size: Callable[[T], int], waiting: Callable[[], None]
) -> Iterator[T]:
    """Yield items in order, each when the objects that it needs are here or have failed; those of the next are on their way.

    Args:
        wanted: the paths that are read for an item.
        size: about how many bytes these are.
        waiting: called before it waits.
    """
    queue = deque[tuple[T, list[RemotePath]]]()
    files = total = 0
    for item in items:
        paths = [path for path in wanted(item) if isinstance(path, RemotePath)]
        for path in paths:
            path.session.request(path.url)
        queue.append((item, paths))
        files += len(paths) or 1
        total += size(item)
        while files >= MOST_FILES or total >= MOST_BYTES:
            first, its_paths = queue.popleft()
            yield from _when_here(first, its_paths, waiting)
            files -= len(its_paths) or 1
            total -= size(first)
    for item, paths in queue:
        yield from _when_here(item, paths, waiting)


def _when_here(item: T, paths: Sequence[RemotePath], waiting: Callable[[], None]) -> Iterator[T]:
    if not all(path.session.has_come(path.url) for path in paths):
        waiting()
        for path in paths:
            path.session.wait(path.url)
    yield item
    for path in paths:
        path.session.done(path.url)


def fetch_ahead(path: AnyPath) -> None:
    """Begin to make a copy of an object that is read later."""
    if isinstance(path, RemotePath):
        path.session.fetch_ahead(path.url)


def versions_of(roots: Iterable[AnyPath]) -> dict[str, tuple[int, str]]:
    """Return the versions of the objects that were fetched whole from these roots."""
    return {
        url: (found.size, found.tag)
        for root in roots
        if isinstance(root, RemotePath)
        for url, found in root.session.versions.items()
    }


@contextmanager
def dropping_copies(roots: Sequence[AnyPath]) -> Iterator[None]:
    """Remove the copies of objects at the end of a run that has read from these roots, but those that other processes read."""
    try:
        yield
    finally:
        if any(isinstance(root, RemotePath) for root in roots):
            drop_copies()


def read_once(path: AnyPath) -> None:
    """Remove the copy of an object that is not read again, unless another process reads it."""
    if isinstance(path, RemotePath):
        path.session.remove(path.url)


def fetched(path: AnyPath, waiting: Callable[[], None]) -> None:
    """Make sure that there is a copy of an object; one that does not exist is noticed when it is read."""
    if isinstance(path, RemotePath):
        waiting()
        try:
            os.fspath(path)
        except FileNotFoundError:
            return
