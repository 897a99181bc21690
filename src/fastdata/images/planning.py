"""Plan a store of images."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fastdata.errors import CodecError, PrepError
from fastdata.images.mask_file import is_binary, mask_values
from fastdata.images.mask_recipe import MaskRecipe, read_palette
from fastdata.images.named import parse_images
from fastdata.images.options import CODECS, ImageOptions
from fastdata.images.prepare import ImageRecipe
from fastdata.images.tokens import with_tokens
from fastdata.kinds import Planned
from fastdata.prepare.plan import make_plan
from fastdata.sources.coco import with_coco
from fastdata.sources.inputs import SourceList
from fastdata.sources.instances import with_groups, with_meanings
from fastdata.sources.listing import list_sources
from fastdata.sources.notes import label_notes
from fastdata.sources.options import StrPath
from fastdata.sources.pairs import image_folders, with_images, with_masks
from fastdata.sources.reasons import refuse_unusable
from fastdata.sources.tables import is_path_table
from fastdata.sources.urls import AnyPath, to_path
from fastdata.sources.yolo import with_yolo

__all__ = ["plan_images"]

PROBED_MASKS = 32


def plan_images(source: StrPath, options: ImageOptions, limit: int | None) -> Planned:
    """List the images and plan what to store.

    Raises:
        PrepError: if there is nothing to prepare, or images, masks and labels do not match.
        ValueError: if options contradict each other.
    """
    images = parse_images(options.images, codecs=CODECS, codec=options.codec, bits=options.bits, gray=options.gray)
    first = images[0][0] if images else options
    mask = None
    if options.masks is not None:
        mask = MaskRecipe(options.mask_bits, *(((), ()) if options.palette is None else read_palette(options.palette)))
    recipe = ImageRecipe(
        sizes=(None,) if options.size is None else options.size,
        resize=options.resize,
        upscale=options.upscale,
        codec=first.codec,
        quality=options.quality,
        gray=first.gray,
        bits=first.bits,
        max_pixels=options.max_pixels,
        mask=mask,
        images=tuple(image for image, _ in images),
        order=options.order or "listed",
        shard_samples=options.shard_samples,
    )
    folders = image_folders(source, [(image.name, where) for image, where in images])
    endings = [] if folders else [f".{where.lstrip('.').lower()}" for _, where in images]
    found = list_sources(folders[0] if folders else source, options, options.fields, endings)
    for (image, _), folder in zip(images[1:], folders[1:], strict=False):
        found = with_images(found, folder, image.name)
    found = with_groups(with_meanings(found))
    for path, annotate in ((options.coco, with_coco), (options.yolo, with_yolo)):
        if path is not None:
            found = annotate(found, to_path(path))
    if options.masks is not None:
        found = with_masks(found, to_path(options.masks))
        if mask is not None and not mask.colors and _are_binary(found, to_path(options.masks)):
            recipe = replace(recipe, mask=replace(mask, binary=True))
    if twice := [name for name, count in Counter(column.name for column in found.columns).items() if count > 1]:
        raise PrepError(f"--fields {twice[0]}: another column has this name; --fields NAME=ENDING gives a name of your choice")
    columns, files = with_tokens(found.columns, options.tokenize)
    plan = make_plan(found, recipe, limit, columns=columns, files=files)
    refuse_unusable(
        plan.sources, found.root, table=is_path_table(to_path(source), options.path_column), told=options.root is not None
    )
    meant = options.no_labels or bool(columns)
    notes = [*label_notes(replace(found, sources=plan.sources), masks=options.masks is not None, meant=meant), *found.notes]
    if columns:
        notes.append(f"columns: {', '.join(map(str, columns))}")
    if images:
        notes.append(f"images of each sample: {', '.join(str(image) for image, _ in images)}")
    companions = folders[1:] if folders else [found.root] * len(images[1:])
    companions += [] if options.masks is None else [to_path(options.masks)]
    return Planned(plan, dict(found.skipped), tuple(notes), found.root if images else None, tuple(companions))


def _are_binary(found: SourceList, masks: AnyPath) -> bool:
    """Return whether some masks, evenly spaced, have no values but 0 and 1, or 0 and 255.

    Raises:
        PrepError: one has smooth edges.
    """
    usable = [k for k, source in enumerate(found.sources) if not source.problem]
    decided = list[bool]()
    for k in range(min(PROBED_MASKS, len(usable))):
        name = found.sources[usable[k * len(usable) // min(PROBED_MASKS, len(usable))]].companions[-1].name
        try:
            decided.append(is_binary(mask_values((masks / name).read_bytes())))
        except (CodecError, OSError) as error:  # a worker will reject it
            if getattr(error, "reason", "") == "mask-values":
                raise PrepError(f"--masks {masks}: {name}: {error}") from None
    return bool(decided) and all(decided)
