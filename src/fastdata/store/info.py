"""The facts of a store, as plain values and as lines; and its samples and counts as people see them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

from fastdata.store.manifest import Variant
from fastdata.store.store import Store
from fastdata.system.machine import free_memory
from fastdata.types import Array
from fastdata.words import human_bytes, number_of

Facts = dict[str, Any]

MAX_LISTED = 20  # classes

Color = tuple[int, ...]


def store_facts(store: Store) -> Facts:
    """Return everything that `fastdata info` reports, as JSON values.

    `memory` is the bytes that a RAMDataset of each size takes, `rejected` a count by reason. A kind adds facts of its own.
    """
    manifest, own = store.manifest, store.kind.module("preview").facts(store)
    of_variants = own.pop("variants", {})
    variants = [_variant(store, variant) | of_variants.get(variant.name, {}) for variant in manifest.variants]
    facts: Facts = {
        "path": str(store.location),
        "format": manifest.version,
        "kind": manifest.kind,
        "samples": len(store),
        "labels": _labels(store),
        "rejected": dict(Counter(reject["reason"] for reject in store.rejects()).most_common()),
        "variants": variants,
        "memory": [_memory(variants, size) for size in dict.fromkeys(one["size"] for one in variants)],
        "free_memory": free_memory(),
        "options": manifest.options,
        "libraries": manifest.libraries,
        "fingerprint": manifest.fingerprint,
        "columns": to_builtins(manifest.columns),
        "images": manifest.images,
    }
    if masks := manifest.section("masks"):
        names = dict(enumerate(masks.names))
        facts["masks"] = [{"class": k, "name": names.get(k, ""), "pixels": count} for k, count in masks.by_class.items()]
    facts |= own
    return facts


def _labels(store: Store) -> Facts:
    labels = store.manifest.labels
    facts: Facts = {"kind": labels.kind}
    if labels.kind == "class":
        values = store.samples["label"]
        known = (values >= 0) & (values < len(labels.names))
        counts = np.bincount(values[known], minlength=len(labels.names)).tolist()
        facts["classes"] = [{"name": name, "samples": count} for name, count in zip(labels.names, counts, strict=True)]
        facts["unlabelled"] = int((~known).sum())
    elif labels.kind == "vector" and len(store):
        values = store.samples["label"]
        with np.errstate(invalid="ignore"):
            ranges = {"min": values.min(0), "mean": values.mean(0, np.float64), "max": values.max(0)}
        facts["columns"] = [
            {"name": name, **{key: float(found[k]) if np.isfinite(found[k]) else None for key, found in ranges.items()}}
            for k, name in enumerate(labels.names)
        ]
    return facts


def _variant(store: Store, variant: Variant) -> Facts:
    facts: Facts = {
        "name": variant.name,
        "size": variant.size,
        "mask": variant.is_mask,
        **structs.asdict(variant.form),
        "shards": len(variant.shards),
        "file_bytes": sum(shard.bytes for shard in variant.shards),
        "record_bytes": int(store.index(variant).lengths.sum()),
    }
    if images := store.manifest.images:
        facts["image"] = variant.image or images[0]
    if variant.originals is not None:
        facts["originals"] = variant.originals
    return facts


def _memory(variants: list[Facts], size: int | None) -> Facts:
    """Return the bytes that a RAMDataset of a size holds, encoded and decoded."""
    of_size = [variant for variant in variants if variant["size"] == size]
    facts = {"size": size, "bytes": sum(variant["record_bytes"] for variant in of_size)}
    if "decoded_bytes" in of_size[0]:
        facts["decoded_bytes"] = sum(variant["decoded_bytes"] for variant in of_size)
    return facts


def info_lines(store: Store) -> Iterator[str]:
    """Yield the facts of a store as lines, the first with its path."""
    facts = store_facts(store)
    item = "sample" if facts["images"] else store.kind.item
    count, labels = number_of(facts.pop("samples"), item), facts.pop("labels")
    classes = {"class": f"{number_of(len(labels.get('classes', ())), 'class')}", "vector": "float labels"}
    yield f"{facts.pop('path')}: {count}, {classes.get(labels.pop('kind'), 'no labels')}, format {facts.pop('format')}"
    facts["columns"] = ", ".join(map(str, store.manifest.columns))
    facts["free_memory"] = human_bytes(facts["free_memory"])
    for name, value in (*labels.items(), *facts.items()):
        rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else []
        if rows and (len(rows[0]) > 2 or "bytes" in rows[0]):
            for (_, first), *rest in (one.items() for one in rows):
                yield f"  {name.removesuffix('s')} {'all' if first is None else _plain(first)}: {_format_facts(dict(rest))}"
            continue
        text = _listed(rows) if rows else _format_facts(value) if isinstance(value, dict) else _plain(value)
        if text not in ("", "0"):
            yield f"  {name.replace('_', ' ')}: {text}"


def _listed(rows: list[Facts]) -> str:
    """Join the first items, and add the number of the others."""
    names = [" ".join(map(_plain, row.values())) for row in rows]
    more = f", and {len(names) - MAX_LISTED} more (--json lists all)" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _format_facts(values: Facts) -> str:
    """Return the names and values that are set."""
    found = {name: text for name, text in plain_values(values).items() if text not in ("", "none", "no")}
    found = {name: human_bytes(int(text)) if name.endswith("bytes") else text for name, text in found.items()}
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in found.items())


def plain_values(values: Facts, within: str = "") -> dict[str, str]:
    """Return JSON values as people read them, by name; values of an inner object by "outer.inner"."""
    found = dict[str, str]()
    for name, value in values.items():
        joint = " x " if name in ("smallest", "largest", "chunk") else ","  # sides
        found |= plain_values(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: _plain(value, joint)}
    return found


def _plain(value: Any, joint: str = ",") -> str:
    if isinstance(value, list | tuple):
        return joint.join(map(_plain, value))
    if isinstance(value, dict):
        return " ".join(map(_plain, value.values()))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if str(value).isprintable() else repr(value)


# Samples and counts, which are drawn on contact sheets and pages


@dataclass(frozen=True)
class Preview:
    """A sample as people see it: its label, its origin, and text or pictures that belong together, uint8 RGB [H, W, 3]."""

    title: str
    note: str
    pictures: Sequence[Array] = ()
    text: str = ""


@dataclass(frozen=True)
class CountTable:
    """Counts of a store, such as the samples of each class: (name, number, colour in pictures or None) of each."""

    title: str
    rows: list[tuple[str, int, Color | None]]


def previews(store: Store, most: int) -> Iterator[Preview]:
    """Yield at most `most` samples, evenly spaced over a store, in the largest stored size."""
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
    import cv2  # which lines of facts do not need

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
