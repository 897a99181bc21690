"""Which mask belongs to which image."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.walk import walk_images

__all__ = ["with_masks"]


def _stem(name: str) -> str:
    return os.path.splitext(os.path.normpath(name))[0]


def with_masks(
    found: SourceList,
    masks: Path,
    suffix: str,
    *,
    walk: Callable[[Path], Iterator[tuple[str, int, str]]] = walk_images,
    stem: Callable[[str], str] = _stem,
) -> SourceList:
    """The same inputs with their masks: the file of the same path and name below `masks`, its stem ending in `suffix`.

    An image without a mask, or with two, and a mask without an image stay in the list with that problem, so that they are rejected
    by name. `walk` lists the files of masks, `stem` takes the ending off a name.

    Raises:
        PrepError: `masks` is no folder, or no mask fits any image.
    """
    if not masks.is_dir():
        raise PrepError(f"--masks {masks} is not a folder; it holds a file for each image, with the same name")
    by_stem: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for name, size, problem in walk(masks):
        of = stem(name)
        by_stem[of.removesuffix(suffix) if of.endswith(suffix) else f"{of}\0"].append((name, size, problem))
    if not any(s.place for s in found.sources) and masks.resolve().is_relative_to(found.root.resolve()):
        raise PrepError(f"--masks {masks} lies inside SOURCE {found.root}, so that masks would be inputs; put it elsewhere")
    sources = [_paired(source, by_stem.get(stem(source.name), [])) for source in found.sources]
    taken = {stem(source.name) for source in found.sources}
    if not taken & set(by_stem):
        image, mask = found.sources[0].name, next((files[0][0] for files in by_stem.values()), "nothing")
        raise PrepError(
            f"no mask in {masks} belongs to an image: the first image is {image}, the first mask {mask}; names must be equal but "
            "for their ending, and for --mask-suffix, such as --mask-suffix _mask"
        )
    alone = sorted(file for of, files in by_stem.items() if of not in taken for file in files)
    return replace(found, sources=sources + [Source(f"{masks.name}/{name}", -1, size, "no-image") for name, size, _ in alone])


def _paired(source: Source, masks: list[tuple[str, int, str]]) -> Source:
    if len(masks) != 1:
        return replace(source, problem=source.problem or ("two-masks" if masks else "no-mask"))
    name, size, problem = masks[0]
    return replace(source, mask=name, size=source.size + max(size, 0), problem=source.problem or (problem and f"mask-{problem}"))
