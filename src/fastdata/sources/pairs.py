"""Match masks to images by name."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.packed import PackedInputs
from fastdata.sources.urls import AnyPath, is_inside
from fastdata.sources.walk import walk_images

__all__ = ["stem_of", "with_masks"]


def stem_of(name: str) -> str:
    """Return a path without its extension."""
    return os.path.splitext(os.path.normpath(name))[0]


def with_masks(
    inputs: SourceList,
    masks: AnyPath,
    suffix: str,
    *,
    walk: Callable[[AnyPath], Iterator[tuple[str, int, str]]] = walk_images,
    stem: Callable[[str], str] = stem_of,
) -> SourceList:
    """Return the inputs with their masks.

    A mask is the file with the path of its image below `masks`, with `suffix` at the end of its stem. An image without a mask or
    with two, and a mask without an image, stay in the list with that problem, so that they are rejected by name. `walk` yields the
    (name, size, problem) of each mask below a folder; `stem` removes the extension from a name.

    Raises:
        PrepError: `masks` is not a folder, or no mask belongs to an image.
    """
    if not masks.is_dir():
        raise PrepError(f"--masks {masks} is not a folder; it holds a file for each image, with the same name")
    by_stem: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for name, size, problem in walk(masks):
        mask_stem = stem(name)
        by_stem[mask_stem.removesuffix(suffix) if mask_stem.endswith(suffix) else f"{mask_stem}\0"].append((name, size, problem))
    if not any(s.place for s in inputs.sources) and is_inside(masks, inputs.root):
        raise PrepError(f"--masks {masks} lies inside SOURCE {inputs.root}, so masks would be inputs; put it elsewhere")
    if not any(stem(source.name) in by_stem for source in inputs.sources):
        image, mask = inputs.sources[0].name, next((files[0][0] for files in by_stem.values()), "nothing")
        raise PrepError(
            f"no mask in {masks} belongs to an image: the first image is {image}, the first mask {mask}; names must be equal but "
            "for the extension and --mask-suffix, such as --mask-suffix _mask"
        )
    sources = PackedInputs(_with_mask(source, by_stem.get(stem(source.name), [])) for source in inputs.sources)
    for source in inputs.sources:
        by_stem.pop(stem(source.name), None)
    unpaired = sorted(file for files in by_stem.values() for file in files)
    sources.extend(Source(f"{masks.name}/{name}", -1, size, "no-image") for name, size, _ in unpaired)
    return replace(inputs, sources=sources)


def _with_mask(source: Source, masks: list[tuple[str, int, str]]) -> Source:
    if len(masks) != 1:
        return replace(source, problem=source.problem or ("two-masks" if masks else "no-mask"))
    name, size, problem = masks[0]
    return replace(source, mask=name, size=source.size + max(size, 0), problem=source.problem or (problem and f"mask-{problem}"))
