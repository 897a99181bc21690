"""Files that belong to inputs by their names, in folders of their own: masks, and the other images of a sample."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from fastdata.errors import PrepError
from fastdata.sources.folder import walk_images
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.notes import detail_of, listed, reason_of
from fastdata.sources.options import StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, to_path
from fastdata.words import number_of

__all__ = ["FileIndex", "image_folders", "refuse_mask_folders", "stem_of", "with_companion", "with_files"]

IMAGES = re.compile(r"^(images?|imgs?|jpegimages|leftimg8bit)([_-]?\w{2,5})?$", re.IGNORECASE)
MASKS = re.compile(r"mask|annot|label|segm|ground.?truth|^gt", re.IGNORECASE)


def stem_of(name: str) -> str:
    """Return a path without its extension."""
    return os.path.splitext(os.path.normpath(name))[0]


class FileIndex:
    """Finds files by the names of inputs, without the extension.

    Where no file has an input's name, one does whose name has the same composed form in Unicode (NFC): macOS writes "é" as two
    characters.

    Args:
        files: with names relative to their folder.
        stem: removes the extension from a name.
        suffix: what the names of the files add to those of inputs.
    """

    def __init__(self, files: Iterable[Source], stem: Callable[[str], str] = stem_of, suffix: str = "") -> None:
        self._stem = stem
        self._files = defaultdict[str, list[Source]](list)
        for file in files:
            name = stem(file.name)
            self._files[name.removesuffix(suffix) if name.endswith(suffix) else f"{name}\0"].append(file)
        self._composed = {_composed(name): name for name in self._files if not name.isascii()}
        self._unpaired = set(self._files)

    def find(self, name: str) -> list[Source]:
        """Return the files of an input."""
        stem = self._stem(name)
        if stem not in self._files:
            stem = self._composed.get(_composed(stem), stem)
        self._unpaired.discard(stem)
        return self._files.get(stem, [])

    def __len__(self) -> int:
        return sum(map(len, self._files.values()))

    def notes(self, inputs: SourceList, called: str, folder: AnyPath) -> list[str]:
        """Return a note on the files that belong to none of the inputs, which were asked for. Raise PrepError if none does."""
        if len(self._unpaired) == len(self._files):
            first = next((files[0].name for files in self._files.values()), "nothing")
            raise PrepError(
                f"no {called} in {folder} belongs to an image: the first image is {inputs.sources[0].name}, the first {called} "
                f"{first}; names must be equal but for the extension, and for what all masks add, such as _mask"
            )
        unpaired = [file.name for file in self.unpaired()]
        return [f"{called}: {number_of(len(unpaired), 'file')} of no input: {listed(unpaired)}"] if unpaired else []

    def unpaired(self) -> list[Source]:
        """Return the files that belong to none of the inputs that were asked for."""
        return [file for stem, files in self._files.items() if stem in self._unpaired for file in files]


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def with_companion(source: Source, files: Sequence[Source], called: str) -> Source:
    """Return an input with its only file of those that have its name. Without one, or with several, it cannot be used."""
    problem, file = "", Source("", -1, 0)
    if len(files) == 1:
        (file,) = files
        if file.problem:
            problem = f"{reason_of(file.problem)}: its {called} ({file.name}): {detail_of(file.problem)}"
    else:
        problem = f"ambiguous-field: it has more than one {called}" if files else f"missing-field: it has no {called}"
    size = source.size + max(file.size, 0)
    return replace(source, companions=(*source.companions, file), size=size, problem=source.problem or problem)


def with_files(
    inputs: SourceList,
    folder: AnyPath,
    called: str = "mask",
    *,
    walk: Callable[[AnyPath], Iterator[tuple[str, int, str]]] = walk_images,
    stem: Callable[[str], str] = stem_of,
) -> SourceList:
    """Return the inputs, each with the file in another folder that has its path: its mask, or the image that is `called` so.

    Where the names of all masks add something, such as "_mask", that is found. walk: yields the (name, size, problem) of each such
    file below a folder. stem: removes the extension from a name.
    """
    files = [Source(name, -1, size, problem) for name, size, problem in walk(folder)]
    suffix = _mask_suffix(inputs, folder, {stem(file.name) for file in files}, stem) if called == "mask" else ""
    index = FileIndex(files, stem, suffix)
    sources = Packed(with_companion(source, index.find(source.name), called) for source in inputs.sources)
    return replace(inputs, sources=sources, notes=(*inputs.notes, *index.notes(inputs, called, folder)))


def _mask_suffix(inputs: SourceList, masks: AnyPath, mask_stems: Set[str], stem: Callable[[str], str]) -> str:
    """Return what all masks add to the names of their images: what more than half of them do."""
    stems = {_composed(stem(source.name)) for source in inputs.sources}
    counts = Counter[str]()
    for mask in map(_composed, mask_stems):
        longest = next((k for k in range(len(mask), 0, -1) if mask[:k] in stems), None)
        counts.update([] if longest is None else [mask[longest:]])
    often = [suffix for suffix, count in counts.items() if 2 * count > min(len(stems), len(mask_stems))]
    if len(often) > 1 and "" not in often:
        raise PrepError(
            f"--masks {masks} holds more than one mask for an image: their names add {listed(sorted(often))}; give a folder that "
            "holds those of one kind only"
        )
    return min(often, default="")


def image_folders(source: StrPath, images: Sequence[tuple[str, str]]) -> list[AnyPath]:
    """Return the folders of the images of a sample, from the name and place of each, perhaps in SOURCE; [] if none is there."""
    root, found = to_path(source), dict[str, AnyPath | None]()
    for name, where in images if root.is_dir() else ():
        found[f"{name}={where}"] = next((path for path in (root / where, to_path(where)) if path.is_dir()), None)
    folders = [folder for folder in found.values() if folder is not None]
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        raise PrepError(f"--images: two of them are in {twice[0]}; give each a folder of its own")
    if folders and len(folders) < len(images):
        missing = next(text for text, folder in found.items() if folder is None)
        raise PrepError(f"--images {missing}: there is no such folder, neither in SOURCE {source} nor elsewhere")
    return folders


def refuse_mask_folders(inputs: SourceList, source: AnyPath) -> None:
    """Refuse a folder that holds one of images and one of masks, which would be read as two classes."""
    image, mask = (next(filter(pattern.search, inputs.labels.names), None) for pattern in (IMAGES, MASKS))
    if image is not None and mask is not None:
        command = ["fastdata-prep", str(source / image), f"{source.absolute().name}.fds", "--masks", str(source / mask)]
        raise PrepError(
            f"{source} holds images in {image}/ and what look like their masks in {mask}/, which would become two classes. Prepare "
            f"them as pairs, with your options:\n  {shlex.join(command)}\nIf they are classes, add --label-from '([^/]+)/'"
        )
