"""The files of a folder in the order of their names, what is left out of it, and one class for each folder in it."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from fastdata.errors import PrepError
from fastdata.sources.inputs import EXTENSIONS, FOLDERS, SPLITS, Source, SourceList, SplitsError, listed, look, nfc
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, UrlPath
from fastdata.store.manifest import Labels
from fastdata.words import number_of

Entry = os.DirEntry[str] | UrlPath


class Walk:
    """A walk below a root. It leaves out hidden files and folders, and links to a folder above, which would repeat files."""

    def __init__(self, root: AnyPath) -> None:
        self._root = root
        self._hidden = list[str]()  # hidden folders are not looked into
        self._loops = list[str]()

    def notes(self) -> tuple[str, ...]:
        """Return notes on what was left out of the folders walked so far."""
        left_out = (self._hidden, "hidden name", ""), (self._loops, "link", " to a folder above")
        return tuple(f"skipped {number_of(len(names), what)}{more}: {listed(names)}" for names, what, more in left_out if names)

    def files(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield the (name, size, problem) of each file in a folder, not in folders below."""
        for entry in list_entries(self._root / folder):
            if not _hidden(entry.name) and not _is_folder(entry):
                yield posixpath.join(folder, entry.name), *look(entry)

    def folders(self, folder: str = "") -> Iterator[str]:
        """Yield the folders in a folder."""
        for entry in list_entries(self._root / folder):
            name = posixpath.join(folder, entry.name)
            if _hidden(entry.name):
                if entry.name != ".DS_Store" and not entry.name.startswith("._"):  # macOS' own, of other files
                    self._hidden.append(name)
            elif _is_folder(entry):
                if isinstance(entry, os.DirEntry) and entry.is_symlink() and self._is_above(Path(entry), folder):
                    self._loops.append(name)
                else:
                    yield name

    def _is_above(self, link: Path, folder: str) -> bool:
        """Return whether a link leads to a folder above it, also on the way through other links."""
        way = (folder, *map(str, PurePosixPath(folder).parents))
        return any(Path(str(self._root), one).resolve().is_relative_to(link.resolve()) for one in way)

    def below(self, folder: str) -> list[str]:
        """Return a folder and all folders below it, in the order of ImageFolder."""
        return sorted([folder, *chain.from_iterable(map(self.below, self.folders(folder)))])


def walk_files(root: AnyPath, walk: Walk | None = None) -> Iterator[tuple[str, int, str]]:
    """Yield the (name, size, problem) of every file in a folder and all folders below it."""
    walk = walk or Walk(root)
    yield from walk.files()
    for folder in walk.folders():
        yield from chain.from_iterable(map(walk.files, walk.below(folder)))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def list_entries(path: AnyPath) -> Sequence[Entry]:
    """Return the entries of a folder, sorted by name."""
    if isinstance(path, UrlPath):
        return path.scan()
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError as error:
        raise PrepError(f"cannot list {path}: {error.strerror}") from error


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def some_names(path: AnyPath) -> Iterator[str]:
    """Yield the names of the files in a folder, in the first rows of a table, or of the one file."""
    if path.is_dir():
        yield from (name for name, _, _ in walk_files(path))
        return
    yield path.name
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from (re.split(r"[,\t]", line)[0].strip('" \n') for line in islice(file, 3))


def list_folder(root: AnyPath, endings: frozenset[str] = EXTENSIONS) -> SourceList:
    """List the files of a folder that have one of the endings, or none. Each folder in it is a class."""
    walk, skipped = Walk(root), Counter[str]()

    def inputs(folder: str, label: int) -> Iterator[Source]:
        for name, size, problem in walk.files(folder):
            ending = os.path.splitext(name)[1].lower()
            if ending in endings or not ending:
                yield Source(name, label, size, problem)
            else:
                skipped[ending] += 1

    names = tuple(walk.folders())
    splits = {name: str(root / name) for name in names if name.lower() in SPLITS}
    if len(splits) > 1:
        others = ["", *chain.from_iterable(walk.below(name) for name in names if name not in splits)]
        beside = (file.name for folder in others for file in inputs(folder, -1) if os.path.splitext(file.name)[1])
        raise SplitsError(root, splits, beside=next(beside, ""))
    top = Packed(inputs("", -1))
    forms = dict[str, int]()  # folders whose names differ only in their form of Unicode are one class
    labels = [forms.setdefault(nfc(name), len(forms)) for name in names]
    below = ((folder, label) for name, label in zip(names, labels, strict=True) for folder in walk.below(name))
    inner = (source for folder, label in below for source in inputs(folder, label))
    sources = Packed(chain(inner, (replace(stray, problem="no-label") for stray in top)))
    if len(sources) == len(top):
        return SourceList(root, Labels("none"), top, skipped, FOLDERS, walk.notes())
    classes = Labels("class", tuple(names[labels.index(k)] for k in range(len(forms))))
    return SourceList(root, classes, sources, skipped, FOLDERS, walk.notes())
