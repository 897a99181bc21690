"""Facts and previews of a store of images, for `fastdata info`, contact sheets and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import numpy as np

from fastdata.codecs.channels import to_bits, to_channels
from fastdata.images.export import read_columns, read_pixels
from fastdata.store.columns import Column, ColumnReader
from fastdata.store.info import Preview, box_color, class_colors, label_text
from fastdata.store.store import Store
from fastdata.types import Array

FINE = 100  # a line is one pixel wide in an image of this side
CAPTIONS = "captions"


def facts(store: Store) -> dict[str, Any]:
    """Return the extreme sides, (width, height), and the decoded bytes of each variant, and the number of boxes per category."""
    facts: dict[str, Any] = {"variants": {}}
    for variant in store.manifest.variants:
        width, height = (store.field(variant, side).astype(np.int64) for side in ("width", "height"))
        facts["variants"][variant.name] = {
            "smallest": [int(width.min()), int(height.min())],
            "largest": [int(width.max()), int(height.max())],
            "decoded_bytes": int(variant.form.nbytes(height * width).sum()),
        }
    categories = _categories(store)
    if categories is not None and categories.names:
        numbers = ColumnReader(store.path, categories, len(store)).take(np.arange(len(store)))
        counts = np.bincount(numbers, minlength=len(categories.names)).tolist()
        facts["categories"] = [{"name": name, "boxes": count} for name, count in zip(categories.names, counts, strict=False)]
    return facts


def previews(store: Store, rows: Array) -> Iterator[Preview]:
    """Yield images with their boxes and keypoints, with the other images and the mask of the sample next to them."""
    manifest = store.manifest
    variants = [store.variant(image=image) for image in manifest.images or ("",)]
    if manifest.section("masks") is not None:
        variants.append(store.variant(mask=True))
    readers = [store.reader(variant) for variant in variants]
    names, (values, _) = store.names(), read_columns(store, variants[0], rows)
    text = next((c.name for c in manifest.columns if c.type == "text" or (c.name, c.type) == (CAPTIONS, "json")), None)
    for k, row in enumerate(rows.tolist()):
        pictures = []
        for variant, reader in zip(variants, readers, strict=True):
            pixels = read_pixels(store, variant, reader, row)
            pictures.append(class_colors()[pixels] if variant.is_mask else to_channels(to_bits(pixels, 8), gray=False))
        pictures[0] = _annotated(pictures[0], store, {name: found[k] for name, found in values.items()})
        value = "" if text is None else values[text][k]  # a text, or several
        caption = next(iter(value), "") if isinstance(value, list) else value
        title = label_text(store, row) or " ".join(str(caption).split())
        yield Preview(title, f"{row}: {names[row].rpartition('/')[2]}", pictures)


def _annotated(pixels: Array, store: Store, values: Mapping[str, Array]) -> Array:
    """Return an image, uint8 [H, W, 3], with its boxes and keypoints."""
    out = np.array(pixels, order="C")
    width = max(1, round(max(out.shape[:2]) / FINE))
    categories = _categories(store)
    for column in store.manifest.columns:
        found = values.get(column.name, np.empty(0))
        if column.geometry == "xyxy":
            same = categories is not None and categories.group == column.group
            numbers = values[categories.name] if categories is not None and same else np.zeros(len(found), np.int64)
            for box, number in zip(found.reshape(-1, 4).round().astype(int), numbers.tolist(), strict=False):
                cv2.rectangle(out, box[:2].tolist(), box[2:].tolist(), box_color(number), width)
        elif column.geometry == "xy":
            for x, y, visible in found.reshape(-1, 3).tolist():
                if visible:
                    cv2.circle(out, (round(x), round(y)), 2 * width, (255, 255, 255), -1)
    return out


def _categories(store: Store) -> Column | None:
    """Return the column with the category of each box, if there is one."""
    groups = {column.group for column in store.manifest.columns if column.geometry == "xyxy"} - {None}
    fitting = (c for c in store.manifest.columns if c.group in groups and c.many and not c.shape and c.type == "int64")
    return next(fitting, None)
