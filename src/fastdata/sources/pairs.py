"""Files that belong to inputs by their names, in folders of their own: masks, and the other images of a sample."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

from fastdata.errors import PrepError
from fastdata.sources.folder import walk_files
from fastdata.sources.inputs import Source, SourceList, detail_of, is_image, listed, path_key, reason_of
from fastdata.sources.packed import Packed
from fastdata.sources.urls import AnyPath, to_path
from fastdata.types import StrPath
from fastdata.words import number_of

IMAGES = re.compile(r"^(images?|imgs?|jpegimages|leftimg8bit)([_-]?\w{2,5})?$", re.IGNORECASE)
WORDS = re.compile(r"(_[a-z][a-z0-9]*)*\Z", re.IGNORECASE)  # at the end of a name; not its number
MASKS = re.compile(r"mask|annot|label|segm|ground.?truth|^gt", re.IGNORECASE)


def stem_of(name: str) -> str:
    """Return a path without its extension."""
    return os.path.splitext(os.path.normpath(name))[0]


class FileIndex:
    """Finds files by the names of inputs. stem: removes the extension from a name."""

    def __init__(self, files: Iterable[Source], stem: Callable[[str], str] = stem_of) -> None:
        self._stem = stem
        self._files = defaultdict[str, list[Source]](list)
        for file in files:
            self._files[self.key(file.name)].append(file)
        self._uses = Counter[str]()  # for how many inputs each file was found

    def key(self, name: str) -> str:
        return path_key(self._stem(name))

    def find(self, name: str, own: str = "", suffix: str = "") -> list[Source]:
        """Return the files of an input, those of exactly its name if there are some. own, suffix: see `suffixes`."""
        files, exact = self._files.get(self.key(name).removesuffix(own) + suffix, []), self._stem(name).removesuffix(own) + suffix
        found = [file for file in files if self._stem(file.name) == exact] or files
        self._uses.update(file.name for file in found)
        return found

    def __len__(self) -> int:
        return sum(map(len, self._files.values()))

    def suffixes(self, inputs: SourceList) -> tuple[str, str]:
        """Return what all inputs add to the names that files share with them, such as "_leftImg8bit", and what the files add.

        Files add what more than half of them do, such as "_mask". Inputs add something only if nothing is paired without that.
        """
        own, stems = "", {self.key(source.name) for source in inputs.sources}
        counts = self._added(stems)
        if not counts:
            end = os.path.commonprefix([stem[::-1] for stem in stems])[::-1]  # noqa: RUF071  characters
            own = WORDS.search(end)[0]  # type: ignore[index]  # it may be empty
            counts = self._added({stem.removesuffix(own) for stem in stems})
        often = [suffix for suffix, count in counts.items() if 2 * count > min(len(stems), len(self._files))]
        if len(often) > 1 and "" not in often:
            raise PrepError(
                f"--masks holds more than one mask for an image: their names add {listed(sorted(often))}; give a folder that holds "
                "those of one kind only"
            )
        return own, min(often, default="")

    def _added(self, stems: Container[str]) -> Counter[str]:
        """Return what files add to the longest of these that their names begin with, and how often."""
        counts = Counter[str]()
        for key in self._files:
            cuts = (k for k in range(len(key), 0, -1) if k == len(key) or not key[k - 1 : k + 1].isdecimal())  # 1 is no part of 10
            longest = next((k for k in cuts if key[:k] in stems), None)
            counts.update([] if longest is None else [key[longest:]])
        return counts

    def unpaired(self) -> list[Source]:
        """Return the files that belong to none of the inputs that were asked for."""
        return [file for files in self._files.values() for file in files if not self._uses[file.name]]

    def notes(self, inputs: SourceList, called: str, folder: AnyPath) -> Iterator[str]:
        """Yield a note on these files. Raise PrepError if they are all."""
        unpaired = [file.name for file in self.unpaired()]
        if len(unpaired) == len(self):
            raise PrepError(
                f"no {called} in {folder} belongs to an image: the first image is {inputs.sources[0].name}, the first {called} "
                f"{[*unpaired, 'nothing'][0]}; names must be equal but for the extension, and for what all masks add, such as _mask"
            )
        if unpaired:
            yield f"{called}: {number_of(len(unpaired), 'file')} of no input: {listed(unpaired)}"
        if shared := [name for name, uses in self._uses.items() if uses > 1]:
            yield f"{called}: {number_of(len(shared), 'file')} of several inputs: {listed(shared)}"


def with_companion(source: Source, files: Sequence[Source], called: str) -> Source:
    """Return an input with its only file of those that have its name. Without one, or with several, it cannot be used."""
    file, problem = Source("", -1, 0), f"missing-field: it has no {called}"
    if len(files) == 1:
        (file,) = files
        problem = file.problem and f"{reason_of(file.problem)}: its {called} ({file.name}): {detail_of(file.problem)}"
    elif files:
        problem = f"ambiguous-field: it has more than one {called}"
    size = source.size + max(file.size, 0)
    return replace(source, companions=(*source.companions, file), size=size, problem=source.problem or problem)


def is_image_or_bare(name: str) -> bool:
    """Return whether a file name has the extension of an image, or none."""
    return is_image(name) or not os.path.splitext(name)[1]


def with_files(
    inputs: SourceList,
    folder: AnyPath,
    called: str = "mask",
    belongs: Callable[[str], bool] = is_image_or_bare,
    stem: Callable[[str], str] = stem_of,
) -> SourceList:
    """Return the inputs, each with the file in another folder that has its path: its mask, or the image that is `called` so.

    belongs: whether a file of such a name is one. stem: removes the extension from a name.
    """
    index = FileIndex((Source(name, -1, size, problem) for name, size, problem in walk_files(folder) if belongs(name)), stem)
    added = index.suffixes(inputs) if called == "mask" else ("", "")
    sources = Packed(with_companion(source, index.find(source.name, *added), called) for source in inputs.sources)
    told = [f"{called}: names have {added[1]} where those of the images have {added[0]}"] if added[0] else []
    return replace(inputs, sources=sources, notes=(*inputs.notes, *told, *index.notes(inputs, called, folder)))


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
        texts = any(name.endswith(".txt") for name, _, _ in walk_files(source / mask))
        option, what = ("--yolo", "YOLO files") if texts else ("--masks", "masks")
        command = ["fastdata-prep", str(source / image), f"{source.absolute().name}.fds", option, str(source / mask)]
        raise PrepError(
            f"{source} holds images in {image}/ and what look like their {what} in {mask}/, which would become two classes. "
            f"Prepare them as pairs, with your options:\n  {shlex.join(command)}\nIf they are classes, add --label-from '([^/]+)/'"
        )
