"""Files that belong to inputs by their names, in folders of their own: masks, and the other images of a sample."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain

from fastdata.errors import PrepError
from fastdata.sources.folder import walk_images
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.notes import detail_of, listed, reason_of
from fastdata.sources.options import StrPath
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, is_inside, to_path
from fastdata.words import number_of

__all__ = ["FileIndex", "image_folders", "refuse_mask_folders", "stem_of", "with_companion", "with_files"]

IMAGES = re.compile(r"(images?|imgs?|jpegimages|leftimg8bit)([_-]?\w{2,5})?", re.IGNORECASE)
MASKS = re.compile(r"mask|annot|label|segm|ground.?truth|^gt", re.IGNORECASE)
MAX_FOLDERS = 8  # among more, a name that contains "mask" may well be a class, such as oxygen_mask
TRIED_IMAGES = 8  # how many images to look for in the names of masks, or a few more
MAX_SUFFIXES = 4  # how many of what masks add there to try: the shortest, since what is added to a longer name is longer


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

    def refuse_unpaired(self, inputs: SourceList, called: str, folder: AnyPath) -> None:
        """Raise PrepError if no file belongs to an input."""
        if not any(self.find(source.name) for source in inputs.sources):
            first = next((files[0].name for files in self._files.values()), "nothing")
            raise PrepError(
                f"no {called} in {folder} belongs to an image: the first image is {inputs.sources[0].name}, the first {called} "
                f"{first}; names must be equal but for the extension, and for what all masks add, such as _mask"
            )

    def unpaired(self) -> list[str]:
        """Return the names of the files that belong to none of the inputs that were asked for."""
        return sorted(file.name for stem in self._unpaired for file in self._files[stem])


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def with_companion(source: Source, files: Sequence[Source], called: str) -> Source:
    """Return an input with its only file of this kind. Without one, or with several, it cannot be used.

    Args:
        files: the files that have its name.
        called: what such a file is, for the reason.
    """
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
    """Return the inputs, each with the file in another folder that has its path: its mask, or a further image.

    Where the names of all masks add something, such as "_mask", that is found.

    Args:
        called: "mask", or the name of the image.
        walk: yields the (name, size, problem) of each such file below a folder.
        stem: removes the extension from a name.
    """
    files = [Source(name, -1, size, problem) for name, size, problem in walk(folder)]
    suffix = _mask_suffix(inputs, folder, {stem(file.name) for file in files}, stem) if called == "mask" else ""
    index = FileIndex(files, stem, suffix)
    index.refuse_unpaired(inputs, called, folder)
    sources = Packed(with_companion(source, index.find(source.name), called) for source in inputs.sources)
    unpaired = index.unpaired()
    more = [f"{called}: {number_of(len(unpaired), 'file')} of no input: {listed(unpaired)}"] if unpaired else []
    return replace(inputs, sources=sources, notes=(*inputs.notes, *more))


def _mask_suffix(inputs: SourceList, masks: AnyPath, mask_stems: Set[str], stem: Callable[[str], str]) -> str:
    """Return what all masks add to the names of their images."""
    if not any(source.place for source in inputs.sources) and is_inside(masks, inputs.root):
        raise PrepError(f"--masks {masks} lies inside SOURCE {inputs.root}, so masks would be inputs; put it elsewhere")
    stems = {_composed(stem(source.name)) for source in inputs.sources}
    suffixes = _suffixes(stems, set(map(_composed, mask_stems)), min(len(stems), len(mask_stems)))
    if len(suffixes) > 1 and "" not in suffixes:
        raise PrepError(
            f"--masks {masks} holds more than one mask for an image: their names add {listed(suffixes)}; give a folder that holds "
            "those of one kind only"
        )
    return min(suffixes, default="")


def image_folders(source: StrPath, images: Sequence[tuple[str, str]]) -> list[AnyPath]:
    """Return the folder of each image of a sample, which may lie in SOURCE; [] if there is none of them, as for archives.

    Args:
        images: the name of each image, and where it lies.
    """
    in_source = [to_path(source) / where for _, where in images] if to_path(source).is_dir() else []
    choices = zip(in_source, (to_path(where) for _, where in images), strict=False)
    found = [next((path for path in pair if path.is_dir()), None) for pair in choices]
    folders = [folder for folder in found if folder is not None]
    for (name, where), folder in zip(images, found if folders else (), strict=False):
        if folder is None:
            raise PrepError(f"--images {name}={where}: there is no such folder, neither in SOURCE {source} nor elsewhere")
        if inner := next((path for path in folders if path is not folder and is_inside(path, folder)), None):
            raise PrepError(f"--images: the folder {inner} lies in {folder}, that of {name}; give two that do not")
    return folders


def refuse_mask_folders(inputs: SourceList, source: AnyPath) -> None:
    """Refuse a folder that holds one of images and one of masks, which would be read as two classes."""
    names = inputs.labels.names
    if inputs.labels.kind != "class" or len(names) > MAX_FOLDERS or not any(map(MASKS.search, names)):
        return
    stems = defaultdict[str, set[str]](set)
    for one in inputs.sources:
        folder, slash, name = one.name.partition("/")
        stems[folder if slash else ""].add(os.path.splitext(name if slash else folder)[0])
    for mask in (name for name in names if MASKS.search(name) and stems[name]):
        for image in (name for name in chain([""], names) if not MASKS.search(name) and stems[name]):
            if IMAGES.fullmatch(image) or _suffixes(stems[image], stems[mask], len(stems[mask])):
                images = str(source / (image or "images"))
                command = ["fastdata-prep", images, f"{source.absolute().name}.fds", "--masks", str(source / mask)]
                raise PrepError(
                    f"{source} holds images{f' in {image}/' if image else ''} and what look like their masks in {mask}/, which "
                    "would become two classes. Put images and masks into two folders, and prepare them as pairs, with your "
                    f"options:\n  {shlex.join(command)}\nIf they are classes, add --label-from '([^/]+)/'"
                )


def _suffixes(images: Set[str], masks: Set[str], count: int) -> list[str]:
    """Return what masks add to the names of images, each for more than half of `count` images; "" for equal names."""
    few = tuple(sorted(images)[:: max(1, len(images) // TRIED_IMAGES)])
    ends = {mask[len(image) :] for mask in masks if mask.startswith(few) for image in few if mask.startswith(image)}
    shortest = sorted(ends, key=lambda end: (len(end), end))[:MAX_SUFFIXES]
    return [end for end in shortest if 2 * sum(image + end in masks for image in images) > count]
