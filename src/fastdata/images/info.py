"""The facts and lines of `fastdata info` for images, and for arrays' labels and masks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import convert

from fastdata.images.sections import Masks
from fastdata.store.column import Column
from fastdata.store.format import Variant
from fastdata.store.info import Facts, label_lines, listed, span
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = [
    "described_each",
    "files_of",
    "head_lines",
    "image_facts",
    "image_lines",
    "image_memory",
    "mask_facts",
    "mask_lines",
    "stored_bytes",
]


def mask_facts(masks: Masks | None) -> Facts:
    """Return the classes of masks, with pixel counts."""
    if masks is None:
        return {}
    names = dict(enumerate(masks.names))
    pixels = sorted((int(k), count) for k, count in masks.pixels.items())
    return {"masks": [{"class": k, "name": names.get(k, ""), "pixels": count} for k, count in pixels]}


def image_facts(store: Store, variant: Variant) -> Facts:
    """Return the smallest and largest sides of a variant, and the bytes of its records."""
    facts: Facts = {}
    if len(store):
        height, width = (store.field(variant, side) for side in ("height", "width"))
        facts |= {"height": [int(height.min()), int(height.max())], "width": [int(width.min()), int(width.max())]}
    return facts | {"record_bytes": stored_bytes(store, [variant])}


def stored_bytes(store: Store, variants: list[Variant]) -> int:
    """Return the total bytes of the records of `variants`."""
    return sum(int(store.index(v).lengths.sum()) for v in variants)


def image_memory(store: Store) -> Iterator[Facts]:
    """Yield the bytes that a RAMDataset of each size holds, encoded and decoded."""
    for size in dict.fromkeys(variant.size for variant in store.manifest.variants):
        variants = [variant for variant in store.manifest.variants if variant.size == size]
        pixels = (store.field(v, "height").astype(np.int64) * store.field(v, "width") for v in variants)
        decoded = sum(int(v.form.nbytes(n).sum()) for v, n in zip(variants, pixels, strict=True))
        yield {"size": size, "bytes": stored_bytes(store, variants), "decoded_bytes": decoded}


def image_lines(facts: Facts) -> Iterator[str]:
    """Yield the store, its labels, a line for each size, and its masks."""
    yield from head_lines(facts, "sample" if "images" in facts else "image")
    for variant in facts["variants"]:
        name = variant["name"].rpartition("-")[2]
        of = "masks of " if variant["mask"] else f"{variant['image']} of " if "image" in variant else ""
        line = f"  {of}size {name}: {variant['codec']}, "
        line += f"{variant['channels']} x {variant['dtype']}, {files_of(variant)}"
        if facts["samples"]:
            (low, high), (narrow, wide) = variant["height"], variant["width"]
            line += f", {span(f'{narrow} x {low}', f'{wide} x {high}')} pixels"
        if "originals" in variant:
            originals = variant["originals"]
            line += f", {originals} with their files' own bytes, {facts['samples'] - originals} encoded"
        yield line + described_each(variant, facts, "an image")
    if columns := facts.get("columns", ()):
        yield f"  columns: {', '.join(str(convert(column, Column)) for column in columns)}"
    yield from mask_lines(facts)


def head_lines(facts: Facts, item: str) -> Iterator[str]:
    """Yield the store and its labels."""
    labels = facts["labels"]
    label_text = {
        "class": number_of(len(labels.get("classes", ())), "class"),
        "vector": f"float labels {', '.join(column['name'] for column in labels.get('columns', ()))}",
        "none": "no labels",
    }[labels["kind"]]
    yield f"{facts['path']}: {number_of(facts['samples'], item)}, {label_text}, format {facts['format']}"
    yield from label_lines(labels, f"{item}s")


def mask_lines(facts: Facts) -> Iterator[str]:
    """Yield the classes of the masks, and their shares."""
    if "masks" in facts:
        total = max(1, sum(entry["pixels"] for entry in facts["masks"]))
        shares = (f"{entry['name'] or entry['class']} {entry['pixels'] / total:.1%}" for entry in facts["masks"])
        yield f"  masks: {number_of(len(facts['masks']), 'class')}, {listed(shares)}"


def files_of(variant: Facts) -> str:
    """Return the size and number of a variant's shards, as text."""
    return f"{human_bytes(variant['file_bytes'])} in {number_of(variant['shards'], 'shard')}"


def described_each(variant: Facts, facts: Facts, item: str) -> str:
    """Return the mean size of a record, as the end of a line."""
    if not facts["samples"]:
        return ""
    return f", {human_bytes(variant['record_bytes'] / facts['samples'])} {'a mask' if variant['mask'] else item}"
