"""Merge finished stores: their tables, columns and manifest are joined, their shards linked as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import structs

from fastdata.errors import PrepError
from fastdata.prepare.build_plan import on_disk
from fastdata.prepare.folder import claimed, is_settled
from fastdata.prepare.plan import differing, plan_path
from fastdata.store.columns import ColumnReader, write_column
from fastdata.store.files import clear, index_file, is_store, link, shard_file, write_atomic, write_tables
from fastdata.store.manifest import Labels, Manifest, Variant, commit
from fastdata.store.store import Store
from fastdata.types import StrPath

AT_ONCE = 1 << 16  # samples of a column in memory at once
INVISIBLE_OPTIONS = {"order", "shard_samples", "binary", "trained_on", "libraries", "rounded"}  # options that records do not show


def merge(stores: Sequence[StrPath], out: StrPath) -> Path:
    """Make one store of several, whose samples follow each other, and return its path.

    The stores must have been prepared with the same options and classes; some may have further classes, which come last. Shards are
    hard-linked where the file system can, and copied otherwise.

    Args:
        stores: two or more stores of one kind.
        out: the store to make.

    Raises:
        PrepError: the stores do not fit together, or `out` holds a store, finished or not, or other files.
        StoreError: a store cannot be read.
    """
    opened = [Store(path, kind=None) for path in stores]
    if len(opened) < 2:
        raise ValueError(f"merge takes two or more stores, not {len(opened)}")
    for other in opened[1:]:
        _check_alike(opened[0], other)
    root = Path(on_disk(out, "stores are merged")).absolute()
    if inside := next((store.path for store in opened if store.path in (root, *root.parents)), None):
        raise PrepError(f"OUT {root} equals or lies in {inside}, one of the stores to merge: choose another name")
    with claimed(root):
        if is_store(root) or not is_settled(root) or plan_path(root).exists():
            raise PrepError(f"OUT {root} holds a store, finished or not: choose another name, or remove it")
        clear(root)
        _link_shards(opened, root)
        commit(root, _join(opened, root))
    return root


def _check_alike(first: Store, other: Store) -> None:
    """Raise a PrepError that says how two stores differ, if they cannot be merged."""
    one, two = first.manifest, other.manifest
    if one.kind != two.kind:
        raise PrepError(f"{first.path} holds {one.kind}, {other.path} holds {two.kind}: only stores of one kind can be merged")
    was, now = ({**_seen(manifest.options), "columns": [*map(str, manifest.columns)]} for manifest in (one, two))
    forms = ([(v.name, v.form) for v in manifest.variants] + [manifest.images, manifest.columns] for manifest in (one, two))
    if was != now or next(forms) != next(forms):
        lines = differing(was, now) or "  names of categories or keypoints, or the tokenizer's file, differ"
        raise PrepError(f"{other.path} was prepared differently from {first.path}:\n{lines}\nGive the same options and --fields.")
    few, many = sorted((one.labels.names, two.labels.names), key=len)
    if one.labels.kind != two.labels.kind or few != many[: len(few)] or (one.labels.kind == "vector" and few != many):
        raise PrepError(
            f"{first.path} and {other.path} differ in labels or class order: for classes, prepare {other.path} with --classes "
            f"{first.path}, or both with one list of names"
        )


def _seen(options: Any, within: str = "") -> Any:
    """Return the options of a manifest that show in records."""
    if not isinstance(options, dict):
        return options
    unseen = INVISIBLE_OPTIONS | ({"name"} if within == "tokenizer" else set())
    return {name: _seen(value, name) for name, value in options.items() if name not in unseen}


def _join(stores: Sequence[Store], folder: Path) -> Manifest:
    """Write the tables of joined stores into a folder, and return their manifest, which is not written."""
    first, manifests = stores[0].manifest, [store.manifest for store in stores]
    rows = [np.array(store.samples) for store in stores]
    inputs = [m.num_samples + m.num_rejects if s.kind.named else len(s.names()) for s, m in zip(stores, manifests, strict=True)]
    offsets = [sum(inputs[:k]) for k in range(len(stores))]
    for some, offset in zip(rows, offsets, strict=True):
        some["source"] += offset
    try:
        sections = stores[0].kind.module("sections").merge(stores, rows)
    except ValueError as error:
        raise PrepError(f"{', '.join(str(store.path) for store in stores)} cannot be merged: {error}") from None
    names = [name for store in stores for name in store.names()]
    rejects = [{**r, "source": r["source"] + offset} for s, offset in zip(stores, offsets, strict=True) for r in s.rejects()]
    indices = {v.name: np.concatenate([np.load(store.path / index_file(v.name)) for store in stores]) for v in first.variants}
    files = write_tables(folder, np.concatenate(rows), names, rejects, indices)
    for column in first.columns:
        readers = [ColumnReader(store.path, column, len(store)) for store in stores]
        lengths = [reader.lengths(np.arange(len(reader))) for reader in readers if column.ragged]
        rows_of = ((reader, np.array_split(np.arange(len(reader)), len(reader) // AT_ONCE + 1)) for reader in readers)
        files |= write_column(folder, column, (reader.take(some) for reader, parts in rows_of for some in parts), lengths)
    for name in [name for name in first.files if name not in files]:  # such as a tokenizer
        files[name] = write_atomic(folder / name, (stores[0].path / name).read_bytes())
    counts = tuple(count for m in manifests for count in m.shard_samples)
    versions = {name: [m.libraries.get(name, "") for m in manifests] for m in manifests for name in m.libraries}
    sums = [[m.fingerprint, [[shard.xxh3_128 for shard in v.shards] for v in m.variants]] for m in manifests]
    return structs.replace(
        first,
        num_samples=sum(counts),
        num_rejects=len(rejects),
        labels=Labels(first.labels.kind, max((m.labels.names for m in manifests), key=len)),
        shard_samples=counts,
        variants=tuple(_join_variants([m.variants[k] for m in manifests]) for k in range(len(first.variants))),
        files=files,
        libraries={name: ", ".join(dict.fromkeys(filter(None, found))) for name, found in versions.items()},
        fingerprint=xxhash.xxh3_128_hexdigest(json.dumps(["joined", sums]).encode()),
        sections=sections,
    )


def _join_variants(found: Sequence[Variant]) -> Variant:
    first = found[0]
    records = None if first.records is None else tuple(n for variant in found for n in variant.records or ())
    originals = None if first.originals is None else sum(variant.originals or 0 for variant in found)
    return structs.replace(
        first, shards=tuple(s for variant in found for s in variant.shards), records=records, originals=originals
    )


def _link_shards(stores: Sequence[Store], root: Path) -> None:
    """Link the shards of stores into a folder, numbered consecutively."""
    for k, variant in enumerate(stores[0].manifest.variants):
        (root / variant.name).mkdir(exist_ok=True)
        shards = [(store, shard) for store in stores for shard in range(len(store.manifest.variants[k].shards))]
        for number, (store, shard) in enumerate(shards):
            link(store.shard(variant, shard), root / shard_file(variant.name, number))
