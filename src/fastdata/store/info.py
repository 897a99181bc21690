"""What a store holds and how it was made, as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fastdata.machine import free_memory
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["store_facts"]


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
        facts["columns"] = [column.as_json() for column in manifest.columns]
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
        **vars(variant.form),
        "shards": len(variant.shards),
        "file_bytes": sum(shard.bytes for shard in variant.shards),
    }
    if images := store.manifest.images:
        facts["image"] = variant.image or images[0]
    if variant.originals is not None:
        facts["originals"] = variant.originals
    return facts | store.kind.variant_facts(store, variant)
