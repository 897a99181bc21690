"""List inputs of several images each: files of one name in several folders, or members of a WebDataset sample."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, SourceList, is_image
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions, StrPath
from fastdata.sources.packed import PackedInputs
from fastdata.sources.pairs import stem_of
from fastdata.sources.urls import AnyPath, is_inside, to_path
from fastdata.sources.walk import Walk, walk_files

__all__ = ["list_several"]


def list_several(
    source: StrPath, images: Sequence[tuple[str, str]], options: LabelOptions, fields: Sequence[str] = ()
) -> tuple[SourceList, tuple[AnyPath, ...]]:
    """List the inputs with all of their images. Names and labels are those of the first image.

    Args:
        source: a folder, or WebDataset tars.
        images: the name of each image, and where it lies: in a folder, which may be in `source`, or in members with an ending.
        options: which inputs and labels to take.
        fields: columns to store.

    Returns:
        The inputs, and the folder of each image but the first.

    Raises:
        PrepError: there is nothing to prepare, or the images do not fit together.
    """
    folders = [_folder(source, where) for _, where in images]
    if not any(folders):
        found = list_sources(source, options, fields, [f".{where.lstrip('.').lower()}" for _, where in images])
        return found, (found.root,) * (len(images) - 1)
    missing = [f"{name}={where}" for (name, where), folder in zip(images, folders, strict=True) if folder is None]
    if missing:
        raise PrepError(f"--images {missing[0]}: there is no such folder, neither in SOURCE {source} nor elsewhere")
    paths = [folder for folder in folders if folder is not None]
    for k, (name, _) in enumerate(images):
        for j, (other, _) in enumerate(images):
            if j != k and is_inside(paths[j], paths[k]):
                raise PrepError(
                    f"--images: the folder {paths[j]} of {other} lies in {paths[k]}, that of {name}; give two that do not"
                )
    found = list_sources(paths[0], options, fields)
    alone = list[Source]()
    for (name, _), folder in zip(images[1:], paths[1:], strict=True):
        found, unpaired = _with_images(found, folder, name)
        alone += unpaired
    return replace(found, sources=PackedInputs(chain(found.sources, alone)) if alone else found.sources), tuple(paths[1:])


def _folder(source: StrPath, where: str) -> AnyPath | None:
    """Return a folder in SOURCE, or anywhere; None: there is none of this name, or SOURCE is no folder."""
    if not to_path(source).is_dir():
        return None
    return next((path for path in (to_path(source) / where, to_path(where)) if path.is_dir()), None)


def _with_images(inputs: SourceList, folder: AnyPath, called: str) -> tuple[SourceList, list[Source]]:
    """Return the inputs, each with the image of its name in another folder; and the images of no input, as inputs to reject.

    An input without an image there, or with two, stays in the list with that problem.
    """
    walk = Walk(folder)
    skipped = Counter(inputs.skipped)
    by_stem: dict[str, list[Source]] = defaultdict(list)
    for name, size, problem in walk_files(folder, walk):
        ending = os.path.splitext(name)[1].lower()
        if is_image(name) or not ending:
            by_stem[stem_of(name)].append(Source(name, -1, size, problem))
        else:
            skipped[ending] += 1
    stems = {stem_of(source.name) for source in inputs.sources}
    if not stems & set(by_stem):
        other = next((files[0].name for files in by_stem.values()), "nothing")
        raise PrepError(
            f"--images: no image of {called} in {folder} belongs to one in {inputs.root}: the first there is "
            f"{inputs.sources[0].name}, the first of {called} {other}; names must be equal but for the extension"
        )
    sources = PackedInputs(_with_image(source, by_stem.get(stem_of(source.name), [])) for source in inputs.sources)
    alone = sorted((file for stem, files in by_stem.items() if stem not in stems for file in files), key=lambda file: file.name)
    notes = tuple(f"{called}: {note}" for note in walk.notes())
    found = replace(inputs, sources=sources, skipped=skipped, notes=inputs.notes + notes)
    return found, [Source(f"{called}/{file.name}", -1, file.size, "unpaired") for file in alone]


def _with_image(source: Source, found: list[Source]) -> Source:
    if len(found) == 1:
        other = found[0]
    else:
        other = Source("", -1, 0, "two-partners" if found else "no-partner")
    size = source.size + max(other.size, 0)
    return replace(source, others=(*source.others, other), size=size, problem=source.problem or other.problem)
