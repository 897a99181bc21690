"""Merge finished stores: their tables, columns and manifest are joined, their shards linked as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import structs

from fastdata.errors import PrepError
from fastdata.prepare.folder import claimed, is_settled, writing
from fastdata.prepare.plan import describe_difference
from fastdata.prepare.upload import on_disk
from fastdata.store.column import Column
from fastdata.store.columns import ColumnReader, write_column
from fastdata.store.files import (
    MANIFEST,
    NAMES,
    REJECTS,
    SAMPLES,
    clear,
    index_file,
    is_store,
    link,
    shard_file,
    sync,
    write_atomic,
    write_npy,
)
from fastdata.store.manifest import Labels, Manifest, Variant
from fastdata.store.store import Store

__all__ = ["merge"]

Array = np.ndarray[Any, np.dtype[Any]]
StrPath = str | os.PathLike[str]
AT_ONCE = 1 << 16  # samples of a column in memory at once
UNSEEN = {"order", "shard_samples", "binary", "trained_on", "libraries", "rounded"}  # options


def merge(stores: Sequence[StrPath], out: StrPath) -> Path:
    """Make one store of several, whose samples follow each other, and return its path.

    The stores must have been prepared with the same options. Classes are joined by their names: those of the first store keep
    their numbers. Shards are linked where the file system can, so that they take no space twice, and copied otherwise.

    Args:
        stores: two or more stores of one kind.
        out: the store to make.

    Raises:
        PrepError: the stores do not fit together, or `out` exists.
        StoreError: a store cannot be read.
    """
    opened = [Store(path, kind=None) for path in stores]
    if len(opened) < 2:
        raise ValueError(f"{len(opened)} stores were given, but merging takes two or more")
    for other in opened[1:]:
        _check_alike(opened[0], other)
    root = Path(on_disk(out, "stores are merged")).absolute()
    if inside := next((store.path for store in opened if store.path in (root, *root.parents)), None):
        raise PrepError(f"OUT {root} is, or lies inside of, {inside}, which is merged: choose another name")
    with writing(root), claimed(root):
        if is_store(root) or not is_settled(root):
            raise PrepError(f"OUT {root} is a store already: choose another name, or remove it")
        clear(root)
        _link_shards(opened, root)
        write_atomic(root / MANIFEST, _join(opened, root).to_json())
    return root


def _check_alike(first: Store, other: Store) -> None:
    """Raise a PrepError that says how two stores differ, if they cannot be joined."""
    one, two = first.manifest, other.manifest
    if one.kind != two.kind:
        raise PrepError(f"{first.path} holds {one.kind}, {other.path} {two.kind}: only stores of one kind can be joined")
    was, now = ({"options": _bytes_options(manifest.options), "libraries": {}, "columns": ()} for manifest in (one, two))
    if was != now:
        lines = describe_difference(was, now)
        raise PrepError(f"{other.path} was prepared in another way than {first.path}:\n{lines}\nGive the same options.")
    if [(v.name, v.size, v.form) for v in one.variants] != [(v.name, v.size, v.form) for v in two.variants]:
        raise PrepError(f"{other.path} has records of another form than {first.path}: prepare both with the same options")
    if _labels(one) != _labels(two):
        raise PrepError(f"{first.path} has {_labels(one)}, {other.path} has {_labels(two)}: samples of both cannot be in one batch")
    columns = [[(c.name, c.type, c.shape, c.many, c.geometry, c.group) for c in m.columns] for m in (one, two)]
    if columns[0] != columns[1]:
        listed = [", ".join(map(str, manifest.columns)) or "none" for manifest in (one, two)]
        raise PrepError(f"{first.path} has the columns {listed[0]}, {other.path} {listed[1]}: give the same --fields to both")


def _bytes_options(options: Any, inside: str = "") -> Any:
    """Return a manifest's options without those that records do not show."""
    if not isinstance(options, dict):
        return options
    unseen = UNSEEN | ({"name"} if inside == "tokenizer" else set())
    return {name: _bytes_options(value, name) for name, value in options.items() if name not in unseen}


def _labels(manifest: Manifest) -> str:
    """Return what has to be alike in the labels and images of two stores."""
    labels = manifest.labels
    images = f", of the images {', '.join(manifest.images)}" if manifest.images else ""
    what = {"class": "classes", "none": "no labels", "vector": "labels"}[labels.kind]
    return f"{what} {', '.join(labels.names) if labels.kind == 'vector' else ''}".strip() + images


def _join(stores: Sequence[Store], folder: Path) -> Manifest:
    """Write the tables of joined stores into a folder, and return their manifest, which is not written.

    The samples are those of the first store, then those of the next. Classes that the first lacks follow its own, so that its
    labels stay the same.

    Raises:
        PrepError: they cannot be joined.
    """
    first = stores[0]
    manifests = [store.manifest for store in stores]
    names, codes = _join_names([m.labels.names for m in manifests] if first.manifest.labels.kind == "class" else [])
    rows = [np.array(store.samples) for store in stores]
    inputs = [len(s.names()) if not s.kind.named else s.manifest.num_samples + s.manifest.num_rejects for s in stores]
    offsets = [sum(inputs[:k]) for k in range(len(stores))]
    for k, part in enumerate(rows):
        if SAMPLES in first.manifest.files:
            part["source"] += offsets[k]
        if codes and "label" in (part.dtype.names or ()):
            part["label"] = _recoded(part["label"], codes[k])
    try:
        sections = first.kind.sections.merge(stores, rows)
    except ValueError as error:
        raise PrepError(f"{', '.join(str(store.path) for store in stores)} cannot be joined: {error}") from None
    files = {}
    if SAMPLES in first.manifest.files:
        files[SAMPLES] = write_npy(folder / SAMPLES, np.concatenate(rows))
    if NAMES in first.manifest.files:
        files[NAMES] = write_atomic(folder / NAMES, b"".join((store.path / NAMES).read_bytes() for store in stores))
    for variant in first.manifest.variants:
        file = index_file(variant.name)
        files[file] = write_npy(folder / file, np.concatenate([np.load(store.path / file) for store in stores]))
    rejects = [{**r, "source": r["source"] + offsets[k]} for k, store in enumerate(stores) for r in store.rejects()]
    files[REJECTS] = write_atomic(folder / REJECTS, "".join(json.dumps(r, sort_keys=True) + "\n" for r in rejects).encode())
    columns = []
    for k, column in enumerate(first.manifest.columns):
        joint, found = _join_column([m.columns[k] for m in manifests], stores)
        columns.append(joint)
        readers = [ColumnReader(store.path, column, len(store)) for store in stores]
        lengths = [reader.lengths(np.arange(len(reader))) for reader in readers if column.ragged]
        files |= write_column(folder, joint, _values(readers, found), lengths)
    for name in [name for name in first.manifest.files if name not in files]:  # such as a tokenizer
        files[name] = write_atomic(folder / name, (first.path / name).read_bytes())
    counts = tuple(count for m in manifests for count in m.shard_samples)
    return structs.replace(
        first.manifest,
        num_samples=sum(counts),
        num_rejects=len(rejects),
        labels=Labels(first.manifest.labels.kind, names) if codes else first.manifest.labels,
        shard_samples=counts,
        variants=tuple(_join_variants([m.variants[k] for m in manifests]) for k in range(len(first.manifest.variants))),
        files=files,
        libraries=_join_libraries(manifests),
        fingerprint=_fingerprint(manifests),
        sections=sections,
        columns=tuple(columns),
    )


def _fingerprint(manifests: Sequence[Manifest]) -> str:
    """Return the fingerprint of joined stores: it follows from their own, and from the sums of all shards."""
    parts = [[m.fingerprint, [[shard.xxh3_128 for shard in v.shards] for v in m.variants]] for m in manifests]
    return xxhash.xxh3_128_hexdigest(json.dumps(["joined", parts]).encode())


def _join_names(found: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[Array | None]]:
    """Return all names, those of the first in its order, and what becomes of the numbers of each; None: they stay."""
    names = list(dict.fromkeys(name for some in found for name in some))
    place = {name: k for k, name in enumerate(names)}
    return tuple(names), [
        None if list(some) == names[: len(some)] else np.array([place[name] for name in some], np.int64) for some in found
    ]


def _recoded(values: Array, codes: Array | None) -> Array:
    """Return the numbers of the joint store for those of one store. Negative ones stay."""
    if codes is None or not len(values):
        return values
    return np.where(values >= 0, codes[np.maximum(values, 0)], values)


def _join_column(found: Sequence[Column], stores: Sequence[Store]) -> tuple[Column, list[Array | None]]:
    """Return a column of joined stores, and what becomes of its numbers in each."""
    first = found[0]
    where = f"column {first.name} of {' and '.join(str(store.path) for store in stores)}"
    if len({(column.tokens, column.names if column.geometry else ()) for column in found}) > 1:
        raise PrepError(f"{where} was made with other tokenizers or keypoints: prepare both alike")
    if first.geometry or len({column.names for column in found}) == 1 == len({column.ids for column in found}):
        return first, [None] * len(found)
    names, codes = _join_names([column.names for column in found])
    known = [dict(zip(column.names, column.ids, strict=True)) for column in found if column.ids]
    ids = {name: number for some in reversed(known) for name, number in some.items()}
    if any(ids[name] != number for some in known for name, number in some.items()) or (ids and len(ids) < len(names)):
        raise PrepError(f"{where} has other ids for the same names: prepare all annotations together")
    if len(names) > np.iinfo(first.dtype).max:
        raise PrepError(f"{where} has {len(names)} names, more than {first.type} holds: prepare both together")
    return structs.replace(first, names=names, ids=tuple(ids[name] for name in names) if ids else ()), codes


def _join_variants(found: Sequence[Variant]) -> Variant:
    first = found[0]
    records = None if first.records is None else tuple(n for variant in found for n in variant.records or ())
    originals = None if first.originals is None else sum(variant.originals or 0 for variant in found)
    return structs.replace(
        first, shards=tuple(s for variant in found for s in variant.shards), records=records, originals=originals
    )


def _join_libraries(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the versions of each library, where they differ one after the other."""
    versions: dict[str, list[str]] = {}
    for manifest in manifests:
        for name, version in manifest.libraries.items():
            versions.setdefault(name, []).extend(version.split(", "))
    return {name: ", ".join(dict.fromkeys(found)) for name, found in versions.items()}


def _values(readers: Sequence[ColumnReader], codes: Sequence[Array | None]) -> Iterator[Array]:
    """Yield the values of a column of joined stores, in the numbers of the joint store."""
    for reader, table in zip(readers, codes, strict=True):
        for begin in range(0, len(reader), AT_ONCE):
            yield _recoded(reader.take(np.arange(begin, min(begin + AT_ONCE, len(reader)))), table)


def _link_shards(stores: Sequence[Store], root: Path) -> None:
    """Link the shards of stores into a folder, numbered through."""
    for k, variant in enumerate(stores[0].manifest.variants):
        (root / variant.name).mkdir(exist_ok=True)
        number = 0
        for store in stores:
            for shard in range(len(store.manifest.variants[k].shards)):
                link(store.shard(variant, shard), root / shard_file(variant.name, number))
                number += 1
        sync(root / variant.name)
    sync(root)
