"""What a store holds and how it was made, as plain values and as lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

from fastdata.store.manifest import Variant
from fastdata.store.store import Store
from fastdata.system.machine import free_memory
from fastdata.words import human_bytes, number_of

__all__ = ["Facts", "info_lines", "plain_values", "spread", "store_facts"]

Facts = dict[str, Any]

MAX_LISTED = 20  # classes
CHECKSUM = re.compile(r"[0-9a-f]{32,}")


def store_facts(store: Store) -> Facts:
    """Return everything that `fastdata info` reports, as JSON values.

    Keys for every kind: `path`, `format`, `kind`, `samples`, `labels`, `rejected` (count by reason), `variants`, `memory` (bytes
    that a RAMDataset of each size takes), `free_memory` (bytes, of this machine), `options`, `libraries`, `fingerprint`. Some
    stores have `masks`, `columns` or `images` (the names of several images a sample); a kind adds its own: `tokens` or `arrays`.
    """
    manifest, own = store.manifest, store.kind.facts(store)
    of_variants = own.pop("variants", {})
    variants = [_variant(store, variant) | of_variants.get(variant.name, {}) for variant in manifest.variants]
    facts: Facts = {
        "path": str(store.place),
        "format": manifest.version,
        "kind": manifest.kind,
        "samples": len(store),
        "labels": _labels(store),
        "rejected": dict(Counter(reject["reason"] for reject in store.rejects()).most_common()),
        "variants": variants,
        "memory": [_memory(variants, size) for size in dict.fromkeys(variant.size for variant in manifest.variants)],
        "free_memory": free_memory(),
        "options": manifest.options,
        "libraries": manifest.libraries,
        "fingerprint": manifest.fingerprint,
    }
    if manifest.columns:
        facts["columns"] = to_builtins(manifest.columns)
    if manifest.images:
        facts["images"] = manifest.images
    if masks := manifest.section("masks"):
        names = dict(enumerate(masks.names))
        pixels = sorted((int(k), count) for k, count in masks.pixels.items())
        facts["masks"] = [{"class": k, "name": names.get(k, ""), "pixels": count} for k, count in pixels]
    return facts | own


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
            low, mean, high = values.min(0), values.mean(0, np.float64), values.max(0)
        facts["columns"] = [
            {"name": name, "min": _number(low[k]), "mean": _number(mean[k]), "max": _number(high[k])}
            for k, name in enumerate(labels.names)
        ]
    else:
        facts["columns"] = [{"name": name} for name in labels.names]
    return facts


def _number(value: float) -> float | None:
    """Return a JSON number; None if the value is not finite."""
    return float(value) if np.isfinite(value) else None


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
    """Return the bytes that a RAMDataset of a size holds, and those of decoded images."""
    of_size = [variant for variant in variants if variant["size"] == size]
    facts = {"size": size, "bytes": sum(variant["record_bytes"] for variant in of_size)}
    if "decoded_bytes" in of_size[0]:
        facts["decoded_bytes"] = sum(variant["decoded_bytes"] for variant in of_size)
    return facts


def info_lines(store: Store) -> Iterator[str]:
    """Yield the lines on what a store contains and how it was made."""
    facts = store_facts(store)
    item = "sample" if "images" in facts else store.kind.item
    labels = facts["labels"]
    label_text = {
        "class": f"{number_of(len(labels.get('classes', ())), 'class')}, ",
        "vector": f"float labels {', '.join(column['name'] for column in labels.get('columns', ()))}, ",
        "none": "no labels, ",
    }[labels["kind"]]
    yield f"{facts['path']}: {number_of(facts['samples'], item)}, {label_text}format {facts['format']}"
    yield from _label_lines(labels, item)
    for variant in facts["variants"]:
        yield _variant_line(variant, facts["samples"])
    if store.manifest.columns:
        yield f"  columns: {', '.join(map(str, store.manifest.columns))}"
    if "masks" in facts:
        total = max(1, sum(entry["pixels"] for entry in facts["masks"]))
        shares = (f"{entry['name'] or entry['class']} {entry['pixels'] / total:.1%}" for entry in facts["masks"])
        yield f"  masks: {number_of(len(facts['masks']), 'class')}, {_listed(shares)}"
    for section in ("tokens", "arrays"):
        if section in facts:
            yield f"  {section}: {_told(facts[section])}"
    yield f"  memory: {_memory_text(facts)}"
    yield f"  rejected: {', '.join(f'{reason} {count}' for reason, count in facts['rejected'].items()) or 'none'}"
    yield f"  options: {_told(facts['options'])}"
    yield "  made with: " + ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())


def _label_lines(labels: Facts, item: str) -> Iterator[str]:
    if labels["kind"] == "class":
        counts = [entry["samples"] for entry in labels["classes"]]
        line = "  classes: " + _listed(f"{entry['name']} {entry['samples']}" for entry in labels["classes"])
        if len(counts) > MAX_LISTED:
            line += f"; {spread(min(counts), max(counts))} {item}s each"
        yield line
        if labels["unlabelled"]:
            yield f"  without a class: {number_of(labels['unlabelled'], item)}, whose target is -1"
    elif "min" in next(iter(labels["columns"]), ()):
        yield "  labels: " + _listed(
            f"{c['name']} {c['min']:.4g} to {c['max']:.4g}, mean {c['mean']:.4g}"
            if None not in c.values()
            else f"{c['name']} with values that are not finite"
            for c in labels["columns"]
        )


def _variant_line(variant: Facts, samples: int) -> str:
    of = f"masks of {variant['name'].rpartition('-')[2]}" if variant["mask"] else variant["name"]
    line = f"  {of}: {variant['codec']}, {variant['channels']} x {variant['dtype']}, {human_bytes(variant['file_bytes'])} in "
    line += number_of(variant["shards"], "shard")
    if "smallest" in variant:
        line += f", {spread(*(' x '.join(map(str, variant[which])) for which in ('smallest', 'largest')))}"
    if "originals" in variant:
        line += f", {variant['originals']} with their files' own bytes, {samples - variant['originals']} encoded"
    return line + (f", {human_bytes(variant['record_bytes'] / samples)} each" if samples else "")


def _listed(items: Iterable[str]) -> str:
    """Join the first items, and say how many more there are."""
    names = list(items)
    more = f", and {len(names) - MAX_LISTED} more (--json lists all)" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def spread(low: Any, high: Any) -> str:
    """Format a range, such as "3" or "1 to 2"."""
    return str(low) if low == high else f"{low} to {high}"


def _memory_text(facts: Facts) -> str:
    """Say how much memory holding the store takes, and how much is free."""
    parts = []
    for entry in facts["memory"]:
        part = human_bytes(entry["bytes"])
        if entry.get("decoded_bytes", entry["bytes"]) != entry["bytes"]:
            part += f" ({human_bytes(entry['decoded_bytes'])} with decoded=True)"
        parts.append(part + (f" at size {entry['size'] or 'full'}" if len(facts["memory"]) > 1 else ""))
    return f"RAMDataset takes {', '.join(parts)}; {human_bytes(facts['free_memory'])} are free here"


def plain_values(values: Facts, within: str = "") -> dict[str, str]:
    """Return JSON values as people read them, by name; those of an inner object by "outer.inner"."""
    found = dict[str, str]()
    for name, value in values.items():
        found |= plain_values(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: _plain(value)}
    return found


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    if isinstance(value, dict):
        return " ".join(map(_plain, value.values()))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value) if str(value).isprintable() else repr(value)


def _told(values: Facts) -> str:
    """Return the names and values that are set, without checksums."""
    told = plain_values(values).items()
    return ", ".join(f"{name} {text}" for name, text in told if text not in ("", "none", "no") and not CHECKSUM.fullmatch(text))
