"""The folders and files below a folder, in the order of their names, and what is left out of them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.inputs import is_image, look
from fastdata.sources.notes import listed
from fastdata.words import number_of

__all__ = ["Walk", "some_names", "walk_files", "walk_images"]

Ids = frozenset[tuple[int, int]]


class Walk:
    """A walk below a root. Hidden files and folders are left out, and so are links to a folder that is above them: they would bring
    the same files in again.

    Args:
        root: where it begins.
        wanted: the names of files that are worth a note, if they are hidden.
    """

    def __init__(self, root: Path, wanted: Callable[[str], bool] = is_image) -> None:
        self._root, self._wanted = root, wanted
        self._hidden, self._loops = list[str](), list[str]()

    def notes(self) -> tuple[str, ...]:
        """What the inner folders that were asked for so far left out."""
        found = []
        if self._hidden:
            found.append(f"skipped {number_of(len(self._hidden), 'hidden file')}: {listed(self._hidden)}")
        if loops := len(self._loops):
            what = "links that lead to folders" if loops > 1 else "link that leads to a folder"
            found.append(f"skipped {loops} {what} above, whose files are here already: {listed(self._loops)}")
        return tuple(found)

    def files(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """The (name, size, problem) of each file in a folder."""
        for entry in _entries(self._root / folder):
            if not _hidden(entry.name) and not _is_folder(entry):
                yield _join(folder, entry.name), *look(entry.path)

    def folders(self) -> Iterator[tuple[str, Iterator[str]]]:
        """Each folder in the root, and itself and all folders in it, which, sorted, stand in the order of ImageFolder."""
        for name, above in self._inner("", _above(self._root)):
            yield name, self._below(name, above)

    def _below(self, folder: str, above: Ids) -> Iterator[str]:
        yield folder
        for name, its in self._inner(folder, above):
            yield from self._below(name, its)

    def _inner(self, folder: str, above: Ids) -> Iterator[tuple[str, Ids]]:
        """The folders in a folder, and what is above each."""
        above |= {_id(self._root / folder)}
        for entry in _entries(self._root / folder):
            name = _join(folder, entry.name)
            if _hidden(entry.name):
                self._hide(entry, name)
            elif _is_folder(entry):
                its = above | _above(Path(entry.path)) if entry.is_symlink() else above
                if _id(Path(entry.path)) in its:
                    self._loops.append(name)
                else:
                    yield name, its

    def _hide(self, entry: os.DirEntry[str], name: str) -> None:
        names = [name]
        if _is_folder(entry):
            walked = () if entry.is_symlink() else os.walk(entry.path)
            names = [f"{name}{at.removeprefix(entry.path)}/{file}" for at, _, files in walked for file in files]
        own = (name for name in names if "/._" not in f"/{name}")  # these hold what macOS knows of other files
        self._hidden += sorted(filter(self._wanted, own))


def walk_files(root: Path, walk: Walk | None = None) -> Iterator[tuple[str, int, str]]:
    """The (name, size, problem) of every file in a folder and all folders in it."""
    walk = walk or Walk(root)
    yield from walk.files()
    for _, inner in walk.folders():
        for folder in sorted(inner):
            yield from walk.files(folder)


def walk_images(root: Path) -> Iterator[tuple[str, int, str]]:
    """The same of the images among them."""
    return (file for file in walk_files(root) if is_image(file[0]) or not os.path.splitext(file[0])[1])


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError as error:
        raise _unlisted(path, error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _id(path: Path) -> tuple[int, int]:
    try:
        info = path.stat()
    except OSError as error:
        raise _unlisted(path, error) from error
    return info.st_dev, info.st_ino


def _above(path: Path) -> Ids:
    """All folders that it really lies in."""
    found = set()
    for folder in path.resolve().parents:
        with suppress(OSError):
            found.add((folder.stat().st_dev, folder.stat().st_ino))
    return frozenset(found)


def _unlisted(path: Path, error: OSError) -> PrepError:
    return PrepError(f"cannot list {path}: {error.strerror}")


def some_names(path: Path) -> Iterator[str]:
    """Yield the names of the files in a folder, in the first rows of a table, or of the one file."""
    if path.is_dir():
        yield from (name for name, _, _ in walk_files(path))
    elif path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from (re.split(r"[,\t]", line)[0].strip('" \n') for line in itertools.islice(file, 3))
    else:
        yield path.name
