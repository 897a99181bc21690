"""What a store holds and how it was made, as plain values and as lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

from fastdata.machine import free_memory
from fastdata.store.format import Variant
from fastdata.store.store import Store
from fastdata.words import human_bytes, number_of

__all__ = ["Facts", "info_lines", "label_lines", "listed", "span", "spread", "store_facts"]

Facts = dict[str, Any]

MOST = 20  # classes that are listed
CHECKSUM = re.compile(r"[0-9a-f]{32,}")


def store_facts(store: Store) -> dict[str, Any]:
    """Return everything that `fastdata info` reports, as JSON values.

    Keys for every kind: `path`, `format`, `kind`, `samples`, `labels`, `rejected` (count by reason), `variants`, `memory` (bytes
    that a RAMDataset of each size takes), `free_memory` (bytes, of this machine), `options`, `libraries`, `fingerprint`. A kind
    adds its own: `masks`, `tokens` or `arrays`. Stores with columns have `columns`, those with several images a sample
    `images`, their names.
    """
    manifest, kind = store.manifest, store.kind
    facts: dict[str, Any] = {
        "path": str(store.place),
        "format": manifest.version,
        "kind": manifest.kind,
        "samples": len(store),
        "labels": _labels(store),
        "rejected": dict(Counter(reject["reason"] for reject in store.rejects()).most_common()),
        "variants": [_variant(store, variant) for variant in manifest.variants],
        "memory": list(kind.memory(store)),
        "free_memory": free_memory(),
        "options": manifest.options,
        "libraries": manifest.libraries,
        "fingerprint": manifest.fingerprint,
    }
    if manifest.columns:
        facts["columns"] = to_builtins(manifest.columns)
    if manifest.images:
        facts["images"] = manifest.images
    return facts | kind.facts(store)


def _labels(store: Store) -> dict[str, Any]:
    labels = store.manifest.labels
    facts: dict[str, Any] = {"kind": labels.kind}
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


def _variant(store: Store, variant: Variant) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": variant.name,
        "size": variant.size,
        "mask": variant.is_mask,
        **structs.asdict(variant.form),
        "shards": len(variant.shards),
        "file_bytes": sum(shard.bytes for shard in variant.shards),
    }
    if images := store.manifest.images:
        facts["image"] = variant.image or images[0]
    if variant.originals is not None:
        facts["originals"] = variant.originals
    return facts | store.kind.variant_facts(store, variant)


def info_lines(store: Store) -> Iterator[str]:
    """Yield the lines on what a store contains and how it was made."""
    facts = store_facts(store)
    yield from store.kind.lines(facts)
    yield f"  memory: {_memory(facts)}"
    yield f"  rejected: {', '.join(f'{reason} {count}' for reason, count in facts['rejected'].items()) or 'none'}"
    yield "  options: " + ", ".join(_options(store.kind.typed(facts["options"])))
    yield "  made with: " + ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())


def listed(items: Iterable[str]) -> str:
    """Join the first items, and say how many more there are."""
    names = list(items)
    return ", ".join(names[:MOST]) + (f", and {len(names) - MOST} more (--json lists all)" if len(names) > MOST else "")


def label_lines(labels: Facts, what: str) -> Iterator[str]:
    """Yield the lines on labels. what: the plural for samples, such as "images"."""
    if labels["kind"] == "class":
        counts = [entry["samples"] for entry in labels["classes"]]
        line = "  classes: " + listed(f"{entry['name']} {entry['samples']}" for entry in labels["classes"])
        if len(counts) > MOST:
            line += f"; {spread(min(counts), max(counts), what)} each"
        yield line
        if labels["unlabelled"]:
            yield f"  without a class: {labels['unlabelled']} {what}, whose target is -1"
    elif "min" in next(iter(labels["columns"]), ()):
        yield "  labels: " + listed(
            f"{c['name']} {c['min']:.4g} to {c['max']:.4g}, mean {c['mean']:.4g}"
            if None not in c.values()
            else f"{c['name']} with values that are not finite"
            for c in labels["columns"]
        )


def spread(low: int, high: int, what: str) -> str:
    """Format a range of counts, such as "3 images" or "1 to 2 images"."""
    return number_of(low, what.removesuffix("s")) if low == high else f"{low} to {high} {what}"


def span(low: str, high: str) -> str:
    """Format a range, such as "3" or "1 to 2"."""
    return low if low == high else f"{low} to {high}"


def _memory(facts: Facts) -> str:
    """Say how much memory holding the store takes, and how much is free."""
    parts = []
    for entry in facts["memory"]:
        part = human_bytes(entry["bytes"])
        if entry.get("decoded_bytes", entry["bytes"]) != entry["bytes"]:
            part += f" ({human_bytes(entry['decoded_bytes'])} with decoded=True)"
        parts.append(part + (f" at size {entry['size'] or 'full'}" if len(facts["memory"]) > 1 else ""))
    return f"RAMDataset takes {', '.join(parts)}; {human_bytes(facts['free_memory'])} are free here"


def _options(options: Facts) -> Iterator[str]:
    """Yield names and values, without options that are not set and without checksums."""
    for name, value in options.items():
        if value is True:
            yield name
        elif isinstance(value, list) and value:
            yield f"{name} {','.join('own' if item is None else str(item) for item in value)}"
        elif isinstance(value, str | int | float) and value != "" and value is not False and not CHECKSUM.fullmatch(str(value)):
            yield f"{name} {value if str(value).isprintable() else repr(value)}"
