"""A contact sheet: what a store of any kind holds, on one PNG."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastdata.codec.pixels import decode_record
from fastdata.store.canvas import GREY, PALE, Canvas, class_colors
from fastdata.store.info_lines import human_bytes, number_of
from fastdata.store.sheet_arrays import array_pictures
from fastdata.store.sheet_table import draw_columns
from fastdata.store.sheet_tokens import draw_documents
from fastdata.store.store import Store

__all__ = ["draw_sheet"]

Array = np.ndarray[Any, np.dtype[Any]]
Pictures = Callable[[int], tuple[list[Array], str]]  # of a sample: RGB pixels, its mask's behind its own, and what to say of them

TILE, GAP, TITLE, LINE = 144, 8, 56, 17
COLUMNS, ROWS = 8, 6
KEY, SWATCH = 24, 16  # of the legend: a line, and a patch of colour
LEGEND = 24  # classes of masks that are named


def draw_sheet(path: str | os.PathLike[str], out: str | os.PathLike[str], *, size: int | None = None) -> int:
    """Draw what a store holds, evenly spaced over all of it, under its name.

    Of images and arrays 48 samples, with class or labels, name and number; of those with masks 24, and a legend. Of volumes, the
    slice in the middle. Of tokens, how 24 documents begin. Of a table, how the values of each column are distributed.

    Args:
        path: the store.
        out: the PNG to write.
        size: of images, which stored size; None: the largest.

    Returns:
        How many samples it shows; of a table, how many columns.
    """
    store = Store(path, kind=None)
    if size is not None and store.manifest.kind != "images":
        store.variant(size)  # which says what there is
    if store.manifest.kind == "tokens":
        canvas, count, said = draw_documents(store, TITLE)
    elif store.manifest.kind == "table":
        canvas, count, said = draw_columns(store, TITLE)
    else:
        canvas, count, said = _tiles(store, size)
    canvas.text(GAP, 26, store.path.name, width=canvas.pixels.shape[1] - 2 * GAP, size=19, bold=True)
    canvas.text(GAP, 46, said, width=canvas.pixels.shape[1] - 2 * GAP, color=GREY)
    canvas.save(out)
    return count


def _tiles(store: Store, size: int | None) -> tuple[Canvas, int, str]:
    """Pictures with their captions below them, and a legend of the masks."""
    pictures = _image_pictures(store, size) if store.manifest.kind == "images" else array_pictures(store)
    legend, across = _legend(store), COLUMNS // 2 if store.manifest.masks else COLUMNS
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
    return canvas, count, _said(store, size, count)


def _said(store: Store, size: int | None, shown: int) -> str:
    """The line below the store's name."""
    manifest = store.manifest
    said = [number_of(len(store), manifest.kind[:-1])]
    if manifest.labels.kind == "class":
        said.append(number_of(len(manifest.labels.names), "class"))
    if manifest.masks is not None:
        said.append(f"masks of {number_of(sum(1 for count in manifest.masks.pixels.values() if count), 'class')}")
    variant = store.variant(size) if manifest.kind == "images" else manifest.variants[0]
    said.append(f"{variant.form.codec} of size {variant.name}" if manifest.kind == "images" else variant.form.dtype)
    if len(store):
        said.append(f"{human_bytes(float(store.samples[f'{variant.name}/bytes'].mean()))} each")
    return ", ".join(said) + ("" if shown == len(store) else f"; {shown} of them, evenly spaced")


def _label(store: Store, index: int) -> str:
    """The class, or the float labels with their names."""
    labels, label = store.manifest.labels, store.samples["label"][index]
    if labels.kind == "class":
        return labels.names[int(label)] if 0 <= label < len(labels.names) else "no class"
    return ", ".join(f"{name} {v:.4g}" for name, v in zip(labels.names, label, strict=True)) if labels.kind == "vector" else ""


def _image_pictures(store: Store, size: int | None) -> Pictures:
    variants = [store.variant(size), *([store.variant(size, mask=True)] if store.manifest.masks else [])]
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
    masks = store.manifest.masks
    if masks is None:
        return []
    pixels = {int(k): count for k, count in masks.pixels.items() if count}
    common = sorted(sorted(pixels, key=lambda k: -pixels[k])[:LEGEND])
    colors, total = class_colors(1 << 16), max(1, sum(pixels.values()))
    names = dict(enumerate(masks.names))
    return [(tuple(colors[k].tolist()), f"{k} {names.get(k, '')} {pixels[k] / total:.1%}".replace("  ", " ")) for k in common]
