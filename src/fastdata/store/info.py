"""info: what a store holds and how it was made, as plain values, and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.machine import free_memory
from fastdata.store.store import Store
from fastdata.store.table import Table

__all__ = ["store_facts"]

Array = np.ndarray[Any, np.dtype[Any]]

WORD = 8  # bytes: a row of a table in memory is a whole number of these


def store_facts(store: Store) -> dict[str, Any]:
    """Everything that `fastdata info` tells of a store, as values that JSON holds.

    Keys of every kind: `path`, `format`, `kind`, `samples`, `labels`, `rejected` (count by reason), `variants`, `memory` (bytes
    that a RAMDataset of each size holds), `free_memory` (bytes, of this machine), `options`, `libraries`, `fingerprint`. Besides
    `masks`, `tokens`, `arrays` or `table`, where there are any.
    """
    manifest = store.manifest
    facts: dict[str, Any] = {
        "path": str(store.path),
        "format": manifest.version,
        "kind": manifest.kind,
        "samples": len(store),
        "labels": _labels(store),
        "rejected": dict(Counter(reject["reason"] for reject in store.rejects()).most_common()),
        "variants": [_variant(store, k) for k in range(len(manifest.variants))],
        "memory": list(_memory(store)),
        "free_memory": free_memory(),
        "options": manifest.options,
        "libraries": manifest.libraries,
        "fingerprint": manifest.fingerprint,
    }
    if manifest.masks is not None:
        names = dict(enumerate(manifest.masks.names))
        pixels = sorted((int(k), count) for k, count in manifest.masks.pixels.items())
        facts["masks"] = [{"class": k, "name": names.get(k, ""), "pixels": count} for k, count in pixels]
    if (tokens := manifest.tokens) is not None:
        lengths = store.samples["tokens"]
        facts["tokens"] = {
            **{key: getattr(tokens, key) for key in ("engine", "name", "sha256", "vocab_size", "end", "largest")},
            "count": sum(tokens.counts),
            "longest": int(lengths.max(initial=0)),
            "shortest": int(lengths.min()) if len(lengths) else 0,
        }
    if (arrays := manifest.arrays) is not None:
        facts["arrays"] = {"chunk": list(arrays.chunk), "channels": arrays.channels}
    if (table := manifest.table) is not None:
        columns = [{**vars(column), "names": list(column.names)} for column in table.columns]
        facts["table"] = {"targets": list(table.targets), "columns": columns}
    return facts


def _labels(store: Store) -> dict[str, Any]:
    labels = store.manifest.labels
    facts: dict[str, Any] = {"kind": labels.kind}
    if labels.kind == "class":
        values = _target(store) if store.manifest.table else store.samples["label"]
        known = (values >= 0) & (values < len(labels.names))
        counts = np.bincount(values[known], minlength=len(labels.names)).tolist()
        facts["classes"] = [{"name": name, "samples": count} for name, count in zip(labels.names, counts, strict=True)]
        facts["unlabelled"] = int((~known).sum())
    elif labels.kind == "vector" and not store.manifest.table and len(store):
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
    """A number as JSON holds it, which has none that is not finite."""
    return float(value) if np.isfinite(value) else None


def _target(store: Store) -> Array:
    """The classes of a table's rows, int64 [n]."""
    table, (variant,) = store.manifest.table, store.manifest.variants
    assert table is not None
    reader, records = store.reader(variant), list(table.records())
    column = table.column(table.targets[0])
    place, dtype = records.index((column, False)), np.dtype(column.dtype).newbyteorder("<")
    found = [np.frombuffer(reader.get(first + place), dtype) for first in range(0, len(reader), len(records))]
    return np.concatenate([np.zeros(0, dtype), *found]).astype(np.int64)


def _variant(store: Store, number: int) -> dict[str, Any]:
    variant = store.manifest.variants[number]
    facts: dict[str, Any] = {
        "name": variant.name,
        "size": variant.size,
        "mask": variant.is_mask,
        **vars(variant.form),
        "shards": len(variant.shards),
        "file_bytes": sum(shard.bytes for shard in variant.shards),
    }
    if store.manifest.kind == "arrays" and len(store):
        arrays = store.manifest.arrays
        assert arrays is not None
        shapes = store.samples["shape"][:, variant.is_mask and arrays.channels : arrays.dims]
        facts |= {"smallest": shapes.min(0).tolist(), "largest": shapes.max(0).tolist()}
    if store.manifest.kind == "images" and len(store):
        height, width = (store.samples[f"{variant.name}/{side}"] for side in ("height", "width"))
        facts |= {"height": [int(height.min()), int(height.max())], "width": [int(width.min()), int(width.max())]}
    if variant.originals is not None:
        facts["originals"] = variant.originals
    if store.manifest.kind in ("images", "arrays"):
        facts["record_bytes"] = int(store.samples[f"{variant.name}/bytes"].sum(dtype=np.int64))
    return facts


def _memory(store: Store) -> Iterator[dict[str, Any]]:
    """What a RAMDataset of each size holds: bytes, and of images the bytes of `decoded=True`."""
    manifest = store.manifest
    if manifest.table is not None:
        yield {"size": None, "bytes": len(store) * _row_bytes(manifest.table, manifest.labels.kind)}
    elif manifest.tokens is not None:
        yield {"size": None, "bytes": sum(manifest.tokens.counts) * np.dtype(manifest.variants[0].form.dtype).itemsize}
    else:
        for size in dict.fromkeys(variant.size for variant in manifest.variants):
            held = [variant for variant in manifest.variants if variant.size == size]
            facts = {"size": size, "bytes": sum(int(store.samples[f"{v.name}/bytes"].sum(dtype=np.int64)) for v in held)}
            if manifest.kind == "images":
                pixels = (store.samples[f"{v.name}/height"].astype(np.int64) * store.samples[f"{v.name}/width"] for v in held)
                facts["decoded_bytes"] = sum(int(v.form.nbytes(n).sum()) for v, n in zip(held, pixels, strict=True))
            yield facts


def _row_bytes(table: Table, labels: str) -> int:
    """Of a row in memory: a value and a mask for each column, and the target."""
    target = {"none": 0, "vector": 4 * len(table.targets)}.get(labels, 8)
    columns = [column for column in table.columns if column.name not in table.targets]
    size = target + sum(np.dtype(column.dtype).itemsize + (column.missing is not None) for column in columns)
    return -(-size // WORD) * WORD
