"""Samples as people see them: pictures or text with a caption, drawn on contact sheets and pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np

from fastdata.store.info import Facts
from fastdata.store.store import Store
from fastdata.types import Array

Color = tuple[int, ...]


@dataclass(frozen=True)
class Preview:
    """A sample as people see it: its label, where it came from, pictures, uint8 RGB [H, W, 3], that belong together, or text."""

    title: str
    note: str
    pictures: Sequence[Array] = ()
    text: str = ""


@dataclass(frozen=True)
class CountTable:
    """What a store counts, such as the samples of each class: (name, number, colour in pictures or None) of each."""

    title: str
    rows: list[tuple[str, int, Color | None]]


def previews(store: Store, most: int) -> Iterator[Preview]:
    """Yield at most so many samples, evenly spaced over a store, in the largest stored size."""
    count = min(len(store), most)
    yield from store.kind.module("preview").previews(store, np.arange(count) * len(store) // max(1, count))


def label_text(store: Store, row: int) -> str:
    """Return the class of a sample, or its float labels with their names."""
    labels, label = store.manifest.labels, store.samples["label"][row]
    if labels.kind == "class":
        return labels.names[int(label)] if 0 <= label < len(labels.names) else "no class"
    return ", ".join(f"{name} {v:.4g}" for name, v in zip(labels.names, label, strict=True)) if labels.kind == "vector" else ""


def counts_of(facts: Facts) -> Iterator[CountTable]:
    """Yield the counts in the facts of a store, the largest first."""
    found: dict[str, list[tuple[str, int, Color | None]]] = {
        "samples of each class": [(one["name"], one["samples"], None) for one in facts["labels"].get("classes", ())],
        "pixels of each class of masks": [
            (f"{one['class']} {one['name']}", one["pixels"], tuple(class_colors()[one["class"]].tolist()))
            for one in facts.get("masks", ())
            if one["pixels"]
        ],
        "boxes of each category": [(one["name"], one["boxes"], box_color(k)) for k, one in enumerate(facts.get("categories", ()))],
        "rejected inputs by reason": [(reason, count, None) for reason, count in facts["rejected"].items()],
    }
    for title, rows in found.items():
        if rows:
            yield CountTable(title, sorted(rows, key=lambda row: -row[1]))


@cache
def class_colors() -> Array:
    """Return a colour for each class number, uint8 [65536, 3]. Class 0 is dark grey; 255 and 65535, which are ignored, are pale."""
    numbers = np.arange(1 << 16)
    hue = numbers * ((math.sqrt(5) - 1) / 2) % 1 * 180
    hsv = np.stack([hue, np.where(numbers % 3 == 2, 130, 200), np.where(numbers % 2, 230, 170)], axis=-1)
    colors: Array = cv2.cvtColor(hsv.astype(np.uint8)[None], cv2.COLOR_HSV2RGB)[0]
    colors[0] = 64
    colors[[255, 65_535]] = 236
    return colors


def box_color(category: int) -> Color:
    """Return a bright colour."""
    return tuple(class_colors()[1 + category % 253].tolist())
