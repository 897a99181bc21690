"""From a source of images to a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastdata.images.mask_recipe import MaskRecipe, read_palette
from fastdata.images.options import ImageOptions
from fastdata.images.prepare import ImageRecipe
from fastdata.kinds import Planned
from fastdata.prepare.plan import make_plan
from fastdata.sources.listing import list_sources
from fastdata.sources.notes import label_notes
from fastdata.sources.options import StrPath
from fastdata.sources.pairs import with_masks
from fastdata.sources.path_table import is_path_table
from fastdata.sources.reasons import refuse_unusable

__all__ = ["plan_images"]


def plan_images(source: StrPath, asked: ImageOptions, limit: int | None) -> Planned:
    """List the images and decide what becomes of them.

    Raises:
        PrepError: there is nothing to prepare, or it does not fit together.
        ValueError: options contradict each other.
    """
    mask = None
    if asked.masks is not None:
        mask = MaskRecipe(asked.mask_bits, *(((), ()) if asked.palette is None else read_palette(asked.palette)))
    recipe = ImageRecipe(
        sizes=(None,) if asked.size is None else asked.size,
        resize=asked.resize,
        upscale=asked.upscale,
        codec=asked.codec,
        quality=asked.quality,
        gray=asked.gray,
        bits=asked.bits,
        background=asked.background,
        max_pixels=asked.max_pixels,
        mask=mask,
    )
    found = list_sources(source, asked)
    if asked.masks is not None:
        found = with_masks(found, Path(asked.masks), asked.mask_suffix)
    plan = make_plan(found, recipe, limit)
    refuse_unusable(plan.sources, found.root, table=is_path_table(Path(source)), told=asked.root is not None)
    said = label_notes(replace(found, sources=list(plan.sources)), masks=asked.masks is not None, meant=asked.no_labels)
    return Planned(plan, dict(found.skipped), (*said, *found.notes), None if asked.masks is None else Path(asked.masks))
