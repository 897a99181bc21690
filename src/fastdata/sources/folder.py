"""The files of a folder in the order of their names, what is left out of it, and one class for each folder in it."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from fastdata.errors import PrepError
from fastdata.sources.inputs import EXTENSIONS, FOLDERS, SPLITS, Source, SourceList, SplitsError, is_image, look
from fastdata.sources.notes import listed
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, UrlPath, to_path
from fastdata.store.manifest import Labels
from fastdata.words import number_of

__all__ = ["Walk", "list_entries", "list_folder", "some_names", "walk_files", "walk_images"]

Entry = os.DirEntry[str] | UrlPath
Ids = frozenset[object]


class Walk:
    """A walk below a root. It leaves out hidden files and folders, and links to a parent folder, which would repeat files.

    Args:
        root: the folder to walk.
        wanted: tells from the name of a hidden file whether to note it.
    """

    def __init__(self, root: AnyPath, wanted: Callable[[str], bool] = is_image) -> None:
        self._root = root
        self._wanted = wanted
        self._hidden = list[str]()
        self._loops = list[str]()

    def notes(self) -> tuple[str, ...]:
        """Return notes on what was left out of the folders walked so far."""
        notes = []
        if self._hidden:
            notes.append(f"skipped {number_of(len(self._hidden), 'hidden file')}: {listed(self._hidden)}")
        if loops := len(self._loops):
            what = "links that lead to folders" if loops > 1 else "link that leads to a folder"
            notes.append(f"skipped {loops} {what} above, whose files are here already: {listed(self._loops)}")
        return tuple(notes)

    def files(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield the (name, size, problem) of each file in a folder, not in folders below."""
        for entry in list_entries(self._root / folder):
            if not _hidden(entry.name) and not _is_folder(entry):
                yield _join(folder, entry.name), *look(entry.path)

    def folders(self) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield each folder in the root, with the folder itself and all below it. Sorted, these have the order of ImageFolder."""
        for name, above in self._inner("", _above(self._root)):
            yield name, self._below(name, above)

    def _below(self, folder: str, above: Ids) -> Iterator[str]:
        yield folder
        for name, parents in self._inner(folder, above):
            yield from self._below(name, parents)

    def _inner(self, folder: str, above: Ids) -> Iterator[tuple[str, Ids]]:
        """Yield the folders in a folder, each with the ids of the folders above it."""
        above |= {_id(self._root / folder)}
        for entry in list_entries(self._root / folder):
            name = _join(folder, entry.name)
            if _hidden(entry.name):
                self._hide(entry, name)
            elif _is_folder(entry):
                path = to_path(entry.path)
                parents = above | _above(path) if entry.is_symlink() else above
                if _id(path) in parents:
                    self._loops.append(name)
                else:
                    yield name, parents

    def _hide(self, entry: Entry, name: str) -> None:
        names = [name]
        if _is_folder(entry):
            names = [] if entry.is_symlink() else [f"{name}/{file}" for file in _all_below(entry.path)]
        own = (name for name in names if "/._" not in f"/{name}")  # macOS keeps metadata of other files in these
        self._hidden += sorted(filter(self._wanted, own))


def walk_files(root: AnyPath, walk: Walk | None = None) -> Iterator[tuple[str, int, str]]:
    """Yield the (name, size, problem) of every file in a folder and all folders below it."""
    walk = walk or Walk(root)
    yield from walk.files()
    for _, inner in walk.folders():
        for folder in sorted(inner):
            yield from walk.files(folder)


def walk_images(root: AnyPath) -> Iterator[tuple[str, int, str]]:
    """Yield the (name, size, problem) of every image, or file without an extension, in a folder and all folders below it."""
    return (file for file in walk_files(root) if is_image(file[0]) or not os.path.splitext(file[0])[1])


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _all_below(folder: str | UrlPath) -> Iterator[str]:
    """Yield the path of each file in a folder and below it, hidden ones too."""
    if isinstance(folder, UrlPath):
        for entry in folder.scan():
            yield from (f"{entry.name}/{file}" for file in _all_below(entry.path)) if entry.is_dir() else (entry.name,)
        return
    for at, _, files in os.walk(folder):
        yield from (f"{at}/{file}".removeprefix(f"{folder}/") for file in files)


def list_entries(path: AnyPath) -> Sequence[Entry]:
    """Return the entries of a folder, sorted by name."""
    if isinstance(path, UrlPath):
        return path.scan()
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError as error:
        raise _unlisted(path, error) from error


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _id(path: AnyPath) -> object:
    """Return what tells a folder from others, by whichever links it is reached."""
    if isinstance(path, UrlPath):
        return path
    try:
        info = path.stat()
    except OSError as error:
        raise _unlisted(path, error) from error
    return info.st_dev, info.st_ino


def _above(path: AnyPath) -> Ids:
    """Return the ids of all folders above a path, with links resolved."""
    ids = set[object]()
    if isinstance(path, UrlPath):
        return frozenset()
    for folder in path.resolve().parents:
        with suppress(OSError):
            ids.add((folder.stat().st_dev, folder.stat().st_ino))
    return frozenset(ids)


def _unlisted(path: AnyPath, error: OSError) -> PrepError:
    return PrepError(f"cannot list {path}: {error.strerror}")


def some_names(path: AnyPath) -> Iterator[str]:
    """Yield the names of the files in a folder, in the first rows of a table, or of the one file."""
    if path.is_dir():
        yield from (name for name, _, _ in walk_files(path))
    elif path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from (re.split(r"[,\t]", line)[0].strip('" \n') for line in itertools.islice(file, 3))
    else:
        yield path.name


def list_folder(root: AnyPath, endings: frozenset[str] = EXTENSIONS) -> SourceList:
    """List the files of a folder that have one of the endings, or none. Each folder in it is a class."""
    walk = Walk(root, lambda name: _ending(name) in endings)
    folders = list(walk.folders())
    splits = {name: str(root / name) for name, _ in folders if name.lower() in SPLITS}
    if len(splits) > 1:
        above = chain(
            walk.files(), (file for name, below in folders if name not in splits for one in below for file in walk.files(one))
        )
        raise SplitsError(root, splits, beside=next((name for name, _, _ in above if _ending(name) in endings), ""))
    skipped: Counter[str] = Counter()
    top = Packed(Source(n, -1, s, p) for n, s, p in _images(walk, "", skipped, endings))
    inner = (
        Source(n, label, s, p)
        for label, (_, below) in enumerate(folders)
        for folder in sorted(below)
        for n, s, p in _images(walk, folder, skipped, endings)
    )
    sources = Packed(chain(inner, (replace(stray, problem="no-label") for stray in top)))
    notes = walk.notes()
    if len(sources) == len(top):
        return SourceList(root, Labels("none"), top, skipped, FOLDERS, notes)
    names = tuple(name for name, _ in folders)
    return SourceList(root, Labels("class", names), sources, skipped, FOLDERS, notes)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _images(walk: Walk, folder: str, skipped: Counter[str], endings: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    """Yield the (name, size, problem) of each image in a folder, and count the other files in `skipped`."""
    for file in walk.files(folder):
        ending = _ending(file[0])
        if ending in endings or not ending:
            yield file
        else:
            skipped[ending] += 1
