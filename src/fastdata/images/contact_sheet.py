"""The contact sheet of images, and of what else has a picture for each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastdata.images.pixels import decode_record
from fastdata.store.canvas import GAP, GREY, PALE, TITLE, Canvas, class_colors
from fastdata.store.format import Variant
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = ["draw_images", "draw_tiles"]

Array = np.ndarray[Any, np.dtype[Any]]
Pictures = Callable[[int], tuple[list[Array], str]]  # of a sample: RGB pixels, its mask's after its own, and what to say of them

TILE, LINE = 144, 17
COLUMNS, ROWS = 8, 6
KEY, SWATCH = 24, 16  # of the legend: a line, and a patch of colour
LEGEND = 24  # classes of masks that are named


def draw_tiles(store: Store, pictures: Pictures, what: str, variant: Variant) -> tuple[Canvas, int, str]:
    """Draw pictures with their captions below them, and a legend of the masks. what: of the variant, for the line at the top."""
    legend, across = _legend(store), COLUMNS // 2 if store.manifest.section("masks") else COLUMNS
    count, lines = min(len(store), across * ROWS), 1 if store.manifest.labels.kind == "none" else 2
    rows, tall, wide = max(1, -(-count // across)), TILE + lines * LINE + 2 * GAP, TILE * (COLUMNS // across) + GAP
    below = TITLE + rows * tall
    canvas, names = Canvas(across * wide + GAP, below + -(-len(legend) // COLUMNS) * KEY), store.names()
    for place in range(count):
        index = place * len(store) // count
        x, y = GAP + place % across * wide, TITLE + place // across * tall
        found, note = pictures(index)
        for k, pixels in enumerate(found):
            canvas.box(x + k * TILE, y, TILE, TILE, PALE)
            canvas.picture(x + k * TILE, y, TILE, TILE, pixels, smooth=not k)
        if lines == 2:
            canvas.text(x, y + TILE + LINE - 2, _label(store, index), width=wide - GAP, bold=True)
        caption = f"{index}: {names[index].rpartition('/')[2]}{note}"
        canvas.text(x, y + TILE + lines * LINE - 2, caption, width=wide - GAP, color=GREY)
    for k, (color, text) in enumerate(legend):
        x, y = GAP + k % COLUMNS * (TILE + GAP), below + k // COLUMNS * KEY
        canvas.box(x, y, SWATCH, SWATCH, color)
        canvas.text(x + SWATCH + 6, y + 13, text, width=TILE - SWATCH - 6)
    return canvas, count, _said(store, what, variant, count)


def _said(store: Store, what: str, variant: Variant, shown: int) -> str:
    """The line below the store's name."""
    manifest, masks = store.manifest, store.manifest.section("masks")
    said = [number_of(len(store), store.kind.item)]
    if manifest.labels.kind == "class":
        said.append(number_of(len(manifest.labels.names), "class"))
    if masks is not None:
        said.append(f"masks of {number_of(sum(1 for count in masks.pixels.values() if count), 'class')}")
    said.append(what)
    if len(store):
        said.append(f"{human_bytes(float(store.samples[f'{variant.name}/bytes'].mean()))} each")
    return ", ".join(said) + ("" if shown == len(store) else f"; {shown} of them, evenly spaced")


def _label(store: Store, index: int) -> str:
    """The class, or the float labels with their names."""
    labels, label = store.manifest.labels, store.samples["label"][index]
    if labels.kind == "class":
        return labels.names[int(label)] if 0 <= label < len(labels.names) else "no class"
    return ", ".join(f"{name} {v:.4g}" for name, v in zip(labels.names, label, strict=True)) if labels.kind == "vector" else ""


def draw_images(store: Store, size: int | None) -> tuple[Canvas, int, str]:
    """Draw images, and their masks next to them."""
    variant = store.variant(size)
    return draw_tiles(store, _pictures(store, size), f"{variant.form.codec} of size {variant.name}", variant)


def _pictures(store: Store, size: int | None) -> Pictures:
    variants = [store.variant(size), *([store.variant(size, mask=True)] if store.manifest.section("masks") else [])]
    readers = [store.reader(variant) for variant in variants]

    def pictures(index: int) -> tuple[list[Array], str]:
        row, found = store.samples[index], []
        for variant, reader in zip(variants, readers, strict=True):
            height, width = (int(row[f"{variant.name}/{side}"]) for side in ("height", "width"))
            pixels = decode_record(reader.get(index), variant.form, height, width)
            found.append(class_colors(1 << 8 * pixels.itemsize)[pixels[:, :, 0]] if variant.is_mask else _rgb8(pixels))
        return found, ""

    return pictures


def _rgb8(pixels: Array) -> Array:
    small = pixels if pixels.dtype == np.uint8 else (pixels // 257).astype(np.uint8)
    return np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small


def _legend(store: Store) -> Sequence[tuple[tuple[int, int, int], str]]:
    """Colours of the commonest classes of masks, and names or numbers with their shares, in the order of the classes."""
    masks = store.manifest.section("masks")
    if masks is None:
        return []
    pixels = {int(k): count for k, count in masks.pixels.items() if count}
    common = sorted(sorted(pixels, key=lambda k: -pixels[k])[:LEGEND])
    colors, total = class_colors(1 << 16), max(1, sum(pixels.values()))
    names = dict(enumerate(masks.names))
    return [(tuple(colors[k].tolist()), f"{k} {names.get(k, '')} {pixels[k] / total:.1%}".replace("  ", " ")) for k in common]
