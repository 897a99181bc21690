"""Contact sheets of images, and of other kinds with a picture for each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastdata.codecs.pixels import decode_record
from fastdata.images.drawn_columns import Boxes, Described, box_legend
from fastdata.store.canvas import GAP, GREY, PALE, TITLE, Canvas, class_colors
from fastdata.store.format import Variant
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = ["draw_images", "draw_tiles", "label_text", "rgb8"]

Array = np.ndarray[Any, np.dtype[Any]]
Pictures = Callable[[int], tuple[list[Array], str]]  # from an index: RGB pixels of its images, then its mask; and a note

TILE, LINE = 144, 17
COLUMNS, ROWS = 8, 6
KEY, SWATCH = 24, 16  # of the legend: height of a line, side of a colour patch
LEGEND = 24  # most classes in the legend


def draw_tiles(store: Store, pictures: Pictures, what: str, variant: Variant) -> tuple[Canvas, int, str]:
    """Draw pictures with captions below, and a legend of the masks or boxes. what: text about the variant, for the top line."""
    legend = _legend(store)
    names = store.names()
    masked = store.manifest.section("masks") is not None
    each = max(1, len(store.manifest.images)) + masked
    across = max(1, COLUMNS // each)
    count = min(len(store), across * ROWS)
    described = Described(store) if store.manifest.columns else None
    lines = 1 if store.manifest.labels.kind == "none" and not (described and described.text) else 2
    rows = max(1, -(-count // across))
    tall = TILE + lines * LINE + 2 * GAP
    wide = TILE * each + GAP
    below = TITLE + rows * tall
    canvas = Canvas(across * wide + GAP, below + -(-len(legend) // COLUMNS) * KEY)
    for place in range(count):
        index = place * len(store) // count
        x, y = GAP + place % across * wide, TITLE + place // across * tall
        images, note = pictures(index)
        for k, pixels in enumerate(images):
            canvas.box(x + k * TILE, y, TILE, TILE, PALE)
            canvas.picture(x + k * TILE, y, TILE, TILE, pixels, smooth=not masked or k < each - 1)
        if lines == 2:
            line = label_text(store, index) or (described.line(index) if described else "")
            canvas.text(x, y + TILE + LINE - 2, line, width=wide - GAP, bold=True)
        caption = f"{index}: {names[index].rpartition('/')[2]}{note}"
        canvas.text(x, y + TILE + lines * LINE - 2, caption, width=wide - GAP, color=GREY)
    for k, (color, text) in enumerate(legend):
        x, y = GAP + k % COLUMNS * (TILE + GAP), below + k // COLUMNS * KEY
        canvas.box(x, y, SWATCH, SWATCH, color)
        canvas.text(x + SWATCH + 6, y + 13, text, width=TILE - SWATCH - 6)
    return canvas, count, _summary(store, what, variant, count)


def _summary(store: Store, what: str, variant: Variant, shown: int) -> str:
    """Return the line below the store's name."""
    manifest = store.manifest
    masks = manifest.section("masks")
    images = manifest.images
    parts = [f"{number_of(len(store), 'sample')} of {', '.join(images)}" if images else number_of(len(store), store.kind.item)]
    if manifest.labels.kind == "class":
        parts.append(number_of(len(manifest.labels.names), "class"))
    if masks is not None:
        parts.append(f"masks of {number_of(sum(1 for count in masks.pixels.values() if count), 'class')}")
    parts.append(what)
    if len(store):
        parts.append(f"{human_bytes(store.index(variant).lengths.mean())} each")
    return ", ".join(parts) + ("" if shown == len(store) else f"; {shown} of them, evenly spaced")


def label_text(store: Store, index: int) -> str:
    """Return the class of a sample, or its float labels with their names."""
    labels = store.manifest.labels
    label = store.samples["label"][index]
    if labels.kind == "class":
        return labels.names[int(label)] if 0 <= label < len(labels.names) else "no class"
    return ", ".join(f"{name} {v:.4g}" for name, v in zip(labels.names, label, strict=True)) if labels.kind == "vector" else ""


def draw_images(store: Store, size: int | None) -> tuple[Canvas, int, str]:
    """Draw images and their boxes, with masks and the other images of the sample next to them."""
    variant = store.variant(size)
    return draw_tiles(store, _pictures(store, size), f"{variant.form.codec} of size {variant.name}", variant)


def _pictures(store: Store, size: int | None) -> Pictures:
    variants = [store.variant(size, image=image) for image in store.manifest.images or ("",)]
    variants += [store.variant(size, mask=True)] if store.manifest.section("masks") else []
    readers = [store.reader(variant) for variant in variants]
    boxes = Boxes(store, variants[0])

    def pictures(index: int) -> tuple[list[Array], str]:
        images = []
        for variant, reader in zip(variants, readers, strict=True):
            height, width = (int(store.field(variant, side)[index]) for side in ("height", "width"))
            pixels = decode_record(reader.get(index), variant.form, height, width)
            images.append(class_colors(1 << 8 * pixels.itemsize)[pixels[:, :, 0]] if variant.is_mask else rgb8(pixels))
        images[0] = boxes.drawn(images[0], index)
        return images, ""

    return pictures


def rgb8(pixels: Array) -> Array:
    """Return pixels [H, W, 1 or 3] as uint8 RGB."""
    small = pixels if pixels.dtype == np.uint8 else (pixels // 257).astype(np.uint8)
    return np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small


def _legend(store: Store) -> Sequence[tuple[tuple[int, int, int], str]]:
    """Return the colours of the commonest classes of masks, with names or numbers and shares, in class order; else of boxes."""
    masks = store.manifest.section("masks")
    if masks is None:
        return box_legend(store, LEGEND)
    pixels = {int(k): count for k, count in masks.pixels.items() if count}
    common = sorted(sorted(pixels, key=lambda k: -pixels[k])[:LEGEND])
    colors = class_colors(1 << 16)
    total = max(1, sum(pixels.values()))
    names = dict(enumerate(masks.names))
    return [(tuple(colors[k].tolist()), f"{k} {names.get(k, '')} {pixels[k] / total:.1%}".replace("  ", " ")) for k in common]
