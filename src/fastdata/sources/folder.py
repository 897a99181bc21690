"""Files in folders: inputs, with a class for each folder; and files, such as masks, that belong to inputs by their names."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from fastdata.errors import PrepError
from fastdata.sources.files import EXTENSIONS, is_image, look, nfc, path_key
from fastdata.sources.inputs import FOLDERS, SPLITS, Packed, Source, SourceList, SplitsError, detail_of, listed, reason_of
from fastdata.sources.urls import AnyPath, UrlPath, to_path
from fastdata.store.manifest import Labels
from fastdata.types import StrPath
from fastdata.words import number_of

Entry = os.DirEntry[str] | UrlPath
Stem = Callable[[str], str]  # returns a path without what does not count where names are compared


class Walk:
    """A walk below a root. It leaves out hidden files and folders, and links to a folder above, which would repeat files."""

    def __init__(self, root: AnyPath) -> None:
        self._root, self._hidden, self._loops = root, list[str](), list[str]()

    def notes(self) -> tuple[str, ...]:
        """Return notes on the names and links that were left out so far."""
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
                if entry.name != ".DS_Store" and not entry.name.startswith("._"):  # macOS' own
                    self._hidden.append(name)
            elif _is_folder(entry):
                if isinstance(entry, os.DirEntry) and entry.is_symlink() and self._is_above(Path(entry), folder):
                    self._loops.append(name)
                else:
                    yield name

    def _is_above(self, link: Path, folder: str) -> bool:
        """Return whether a link leads to a folder above it, directly or by way of other links."""
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
    """Yield the file names in a folder; or a file's name and, if it is a table, the names in its first rows."""
    if path.is_dir():
        yield from (name for name, _, _ in walk_files(path))
        return
    yield path.name
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from (re.split(r"[,\t]", line)[0].strip('" \n') for line in islice(file, 3))


def list_folder(root: AnyPath, endings: frozenset[str] = EXTENSIONS) -> SourceList:
    """List the files of a folder that have one of the endings, or no ending. Each folder in it is a class."""
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


# Files that belong to inputs by their names

IMAGES = re.compile(r"^(images?|imgs?|jpegimages|leftimg8bit)([_-]?\w{2,5})?$", re.IGNORECASE)
WORDS = re.compile(r"(_[a-z][a-z0-9]*)*\Z", re.IGNORECASE)  # at the end of a name; not its number
MASKS = re.compile(r"mask|annot|label|segm|ground.?truth|^gt", re.IGNORECASE)


def stem_of(name: str) -> str:
    """Return a path without its extension."""
    return os.path.splitext(os.path.normpath(name))[0]


class FileIndex:
    """Finds files by the names of inputs. stem: removes the extension from a name."""

    def __init__(self, files: Iterable[Source], stem: Stem = stem_of) -> None:
        self._stem = stem
        self._files = defaultdict[str, list[Source]](list)
        for file in files:
            self._files[self.key(file.name)].append(file)
        self._uses = Counter[str]()  # for how many inputs each file was found

    def key(self, name: str) -> str:
        return path_key(self._stem(name))

    def find(self, name: str, own: str = "", suffix: str = "") -> list[Source]:
        """Return the files that belong to an input: only those of exactly its name, if any. own, suffix: see `suffixes`."""
        files, exact = self._files.get(self.key(name).removesuffix(own) + suffix, []), self._stem(name).removesuffix(own) + suffix
        found = [file for file in files if self._stem(file.name) == exact] or files
        self._uses.update(file.name for file in found)
        return found

    def __len__(self) -> int:
        return sum(map(len, self._files.values()))

    def suffixes(self, inputs: SourceList) -> tuple[str, str]:
        """Return the suffix that all inputs add to the names they share with files, such as "_leftImg8bit", and the files' suffix.

        The files' suffix is what over half of them add, such as "_mask". Inputs have a suffix only if no input pairs without it.
        """
        own, stems = "", {self.key(source.name) for source in inputs.sources}
        counts = self._added(stems)
        if not counts:
            end = os.path.commonprefix([stem[::-1] for stem in stems])[::-1]  # noqa: RUF071  characters
            own = WORDS.search(end)[0]  # type: ignore[index]  # it may be empty
            counts = self._added({stem.removesuffix(own) for stem in stems})
        often = [suffix for suffix, count in counts.items() if 2 * count > min(len(stems), len(self._files))]
        if len(often) > 1 and "" not in often:
            added = listed(sorted(often))
            raise PrepError(f"--masks holds more than one mask for an image, with suffixes {added}; give masks of one suffix")
        return own, min(often, default="")

    def _added(self, stems: Container[str]) -> Counter[str]:
        """Count the ends of file names, after the longest of `stems` that each name begins with."""
        counts = Counter[str]()
        for key in self._files:
            cuts = (k for k in range(len(key), 0, -1) if k == len(key) or not key[k - 1 : k + 1].isdecimal())  # 1 is no part of 10
            longest = next((k for k in cuts if key[:k] in stems), None)
            counts.update([] if longest is None else [key[longest:]])
        return counts

    def unpaired(self) -> list[Source]:
        """Return the files that belong to none of the inputs passed to `find`."""
        return [file for files in self._files.values() for file in files if not self._uses[file.name]]

    def notes(self, inputs: SourceList, called: str, folder: AnyPath) -> Iterator[str]:
        """Yield notes on files without an input, or with several inputs. Raise PrepError if no file has an input."""
        unpaired = [file.name for file in self.unpaired()]
        if len(unpaired) == len(self):
            first = f"the first input is {inputs.sources[0].name}, the first {called} is {[*unpaired, 'missing'][0]}"
            raise PrepError(f"no {called} in {folder} belongs to an input: {first}; make the names equal, except for the extension")
        if unpaired:
            yield f"{called}: {number_of(len(unpaired), 'file')} without an input: {listed(unpaired)}"
        if shared := [name for name, uses in self._uses.items() if uses > 1]:
            yield f"{called}: {number_of(len(shared), 'file')} shared by several inputs: {listed(shared)}"


def with_companion(source: Source, files: Sequence[Source], called: str) -> Source:
    """Return an input with the only one of `files`. If there is none, or several, the input cannot be used."""
    file, problem = Source("", -1, 0), f"missing-field: it has no {called}"
    if len(files) == 1:
        (file,) = files
        problem = file.problem and f"{reason_of(file.problem)}: its {called} ({file.name}): {detail_of(file.problem)}"
    elif files:
        problem = f"ambiguous-field: it has more than one {called}"
    size = source.size + max(file.size, 0)
    return replace(source, companions=(*source.companions, file), size=size, problem=source.problem or problem)


def may_be_image(name: str) -> bool:
    """Return whether a file name has the extension of an image, or no extension."""
    return is_image(name) or not os.path.splitext(name)[1]


def with_files(
    inputs: SourceList, folder: AnyPath, called: str = "mask", belongs: Callable[[str], bool] = may_be_image, stem: Stem = stem_of
) -> SourceList:
    """Return the inputs, each with the file of the same path in another folder. belongs: whether a file of this name counts."""
    index = FileIndex((Source(name, -1, size, problem) for name, size, problem in walk_files(folder) if belongs(name)), stem)
    added = index.suffixes(inputs) if called == "mask" else ("", "")
    sources = Packed(with_companion(source, index.find(source.name, *added), called) for source in inputs.sources)
    told = [f'{called}: names have "{added[1]}" where those of the inputs have "{added[0]}"'] if added[0] else []
    return replace(inputs, sources=sources, notes=(*inputs.notes, *told, *index.notes(inputs, called, folder)))


def image_folders(source: StrPath, images: Sequence[tuple[str, str]]) -> list[AnyPath]:
    """Return the folders of a sample's images, or [] if none exists. images: the name of each and its folder, perhaps in SOURCE."""
    root, found = to_path(source), dict[str, AnyPath | None]()
    for name, where in images if root.is_dir() else ():
        found[f"{name}={where}"] = next((path for path in (root / where, to_path(where)) if path.is_dir()), None)
    folders = [folder for folder in found.values() if folder is not None]
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        raise PrepError(f"--images: {twice[0]} is given more than once; give each NAME a folder of its own")
    if folders and len(folders) < len(images):
        missing = next(text for text, folder in found.items() if folder is None)
        raise PrepError(f"--images {missing}: there is no such folder in SOURCE {source} or the current folder")
    return folders


def refuse_mask_folders(inputs: SourceList, source: AnyPath) -> None:
    """Refuse a folder that holds a folder of images and a folder of masks, which would be read as two classes."""
    image, mask = (next(filter(pattern.search, inputs.labels.names), None) for pattern in (IMAGES, MASKS))
    if image is not None and mask is not None:
        texts = any(name.endswith(".txt") for name, _, _ in walk_files(source / mask))
        option, what = ("--yolo", "YOLO files") if texts else ("--masks", "masks")
        command = ["fastdata-prep", str(source / image), f"{source.absolute().name}.fds", option, str(source / mask)]
        found = f"{source} probably holds images in {image}/ and their {what} in {mask}/; each would become a class"
        pairs = f"Prepare images and {what} as pairs, and add your options:\n  {shlex.join(command)}"
        raise PrepError(f"{found}. {pairs}\nIf the two folders are classes, add --label-from '([^/]+)/'")
