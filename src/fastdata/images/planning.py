"""Plan a store of images."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fastdata.codecs import CODECS
from fastdata.errors import CodecError, PrepError
from fastdata.images.kind import ImageOptions
from fastdata.images.prepare import ImageRecipe, MaskRecipe, is_binary, mask_values, read_palette
from fastdata.images.sections import NamedImage
from fastdata.images.tokens import with_tokens
from fastdata.prepare.plan import Plan, make_plan
from fastdata.sources.annotations import with_coco, with_yolo
from fastdata.sources.fields import with_groups
from fastdata.sources.folder import image_folders, with_files
from fastdata.sources.inputs import SourceList, label_notes
from fastdata.sources.listing import list_sources
from fastdata.sources.urls import AnyPath, to_path
from fastdata.types import StrPath

PROBED_MASKS = 32
IMAGE = re.compile(rf"([A-Za-z0-9_]{{1,100}})=(.+?)(?::({'|'.join(CODECS)}))?(?::(8|16))?(:gray)?")
IMAGE_FORM = "NAME=WHERE[:CODEC][:BITS][:gray], such as left=left or depth=depth:png:16:gray"


def plan_source(source: StrPath, out: Path, options: ImageOptions, limit: int | None) -> Plan:
    """List the images and plan what to store. Raise ValueError if options contradict each other."""
    images = _named_images(options)
    first = images[0][0] if images else options
    palette = ((), ()) if options.palette is None else read_palette(options.palette)
    mask = None if options.masks is None else MaskRecipe(options.mask_bits, *palette)
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
    companions = folders[1:] or [found.root] * len(images[1:])
    for (image, _), folder in zip(images[1:], folders[1:], strict=False):
        found = with_files(found, folder, image.name)
    found = with_groups(found)
    for path, annotate in ((options.coco, with_coco), (options.yolo, with_yolo)):
        if path is not None:
            found = annotate(found, to_path(path))
    if mask is not None and options.masks is not None:
        companions.append(to_path(options.masks))
        found = with_files(found, companions[-1])
        if not mask.colors and _are_binary(found, companions[-1]):
            recipe = replace(recipe, mask=replace(mask, binary=True))
    if twice := [name for name, count in Counter(column.name for column in found.columns).items() if count > 1]:
        raise PrepError(f"--fields {twice[0]}: another column has this name: leave one out, or change NAME in NAME=ENDING")
    columns, files = with_tokens(found.columns, options.tokenize)
    plan = make_plan(found, recipe, limit, columns=columns, files=files, companions=companions)
    no_labels = options.no_labels or bool(columns)
    notes = [*label_notes(replace(found, sources=plan.sources), masks=mask is not None, no_labels=no_labels), *found.notes]
    if columns:
        notes.append(f"columns: {', '.join(map(str, columns))}")
    return replace(plan, notes=tuple(notes))


def _are_binary(found: SourceList, masks: AnyPath) -> bool:
    """Return whether some masks, evenly spaced, are all binary."""
    usable = [k for k, source in enumerate(found.sources) if not source.problem]
    decided, count = list[bool](), min(PROBED_MASKS, len(usable))
    for k in range(count):
        name = found.sources[usable[k * len(usable) // count]].companions[-1].name
        try:
            decided.append(is_binary(mask_values((masks / name).read_bytes())))
        except (CodecError, OSError) as error:  # a worker will reject it
            if getattr(error, "reason", "") == "mask-values":
                raise PrepError(f"--masks {masks}: {name}: {error}") from None
    return bool(decided) and all(decided)


def _named_images(options: ImageOptions) -> list[tuple[NamedImage, str]]:
    """Return each image that `--images` names, and where it lies. Raise ValueError if a value is malformed."""
    found = dict[str, tuple[NamedImage, str]]()
    for text in options.images:
        match = IMAGE.fullmatch(text)
        if match is None or match[1] in ("mask", "masks", *found):  # an export has masks under these names
            raise ValueError(f"--images {text}: give {IMAGE_FORM}; use each NAME once, of letters, digits and _, not mask(s)")
        image = NamedImage(match[1], match[3] or options.codec, int(match[4] or options.bits), bool(match[5]) or options.gray)
        found[image.name] = image, match[2]
    if len(found) == 1:
        raise ValueError(f"--images {options.images[0]} is the only --images: give two or more, or none")
    return list(found.values())
