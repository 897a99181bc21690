"""Merge finished stores: their tables, columns and manifest are joined, their shards linked as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import structs

from fastdata.errors import PrepError
from fastdata.prepare.folder import claimed, writing
from fastdata.prepare.plan import describe_difference
from fastdata.prepare.replacing import is_settled
from fastdata.prepare.upload import place_of
from fastdata.remote.url import is_url
from fastdata.store.column import Column
from fastdata.store.columns import ColumnReader, write_column
from fastdata.store.files import (
    COLUMNS,
    MANIFEST,
    NAMES,
    REJECTS,
    SAMPLES,
    FileSum,
    clear,
    index_file,
    is_store,
    link,
    shard_file,
    sync,
    write_atomic,
    write_npy,
)
from fastdata.store.format import Labels, Manifest, Variant
from fastdata.store.store import Store

__all__ = ["merge"]

Array = np.ndarray[Any, np.dtype[Any]]
StrPath = str | os.PathLike[str]
AT_ONCE = 1 << 16  # samples of a column in memory at once


def merge(stores: Sequence[StrPath], out: StrPath) -> Path:
    """Make one store of several, whose samples follow each other.

    The stores must have been prepared with the same options. Classes are joined by their names: those of the first store keep
    their numbers. Shards are linked where the file system can, so that they take no space twice, and copied otherwise.

    Args:
        stores: two or more stores of one kind.
        out: the store to make.

    Returns:
        The path of the store.

    Raises:
        PrepError: the stores do not fit together, or `out` exists.
        StoreError: a store cannot be read.
    """
    opened = [Store(path, kind=None) for path in stores]
    if len(opened) < 2:
        raise ValueError(f"{len(opened)} stores were given, but merging takes two or more")
    _check_alike(opened)
    place = place_of(out)
    if is_url(place):
        raise PrepError(f"OUT is {place}, but stores are merged on a disk: merge them there, then fastdata publish")
    root = Path(place).absolute()
    if inside := next((store.path for store in opened if store.path in (root, *root.parents)), None):
        raise PrepError(f"OUT {root} is, or lies inside of, {inside}, which is merged: choose another name")
    with writing(root), claimed(root):
        if is_store(root) or not is_settled(root):
            raise PrepError(f"OUT {root} is a store already: choose another name, or remove it")
        clear(root)
        _link_shards(opened, root)
        write_atomic(root / MANIFEST, _join(opened, root).to_json())
    return root


@dataclass(frozen=True)
class _Codes:
    """How the numbers of a store become those of the joint one; None: they stay."""

    table: Array | None

    def __call__(self, values: Array) -> Array:
        if self.table is None or not len(values):
            return values
        known = values >= 0
        return np.where(known, self.table[np.where(known, values, 0)], values)


def _check_alike(stores: Sequence[Store]) -> None:
    """Raise a PrepError that says how stores differ, if they cannot be joined."""
    first = stores[0]
    for other in stores[1:]:
        one, two = first.manifest, other.manifest
        if first.kind.name != other.kind.name:
            raise PrepError(f"{first.path} holds {one.kind}, {other.path} {two.kind}: only stores of one kind can be joined")
        was, now = (first.kind.alike(manifest.options) for manifest in (one, two))
        if was != now:
            same = {name: value for name, value in one.options.items() if name not in was or was[name] == now.get(name)}
            before, after = ({"options": {**manifest.options, **same}, "libraries": {}, "columns": ()} for manifest in (one, two))
            lines = describe_difference(before, after, first.kind, first.kind)
            raise PrepError(f"{other.path} was prepared in another way than {first.path}:\n{lines}\nGive the same options.")
        if [(v.name, v.size, v.form) for v in one.variants] != [(v.name, v.size, v.form) for v in two.variants]:
            raise PrepError(f"{other.path} has records of another form than {first.path}: prepare both with the same options")
        if (one.labels.kind, one.images) != (two.labels.kind, two.images):
            raise PrepError(
                f"{first.path} has {_labels(one)}, {other.path} has {_labels(two)}: samples of both cannot be in one batch"
            )
        if one.labels.kind != "class" and one.labels.names != two.labels.names:
            raise PrepError(f"{first.path} and {other.path} have labels of other names: {_labels(one)}; {_labels(two)}")
        columns = [[(c.name, c.type, c.shape, c.many, c.geometry, c.group) for c in m.columns] for m in (one, two)]
        if columns[0] != columns[1]:
            listed = [", ".join(map(str, manifest.columns)) or "none" for manifest in (one, two)]
            raise PrepError(f"{first.path} has the columns {listed[0]}, {other.path} {listed[1]}: give the same --fields to both")


def _labels(manifest: Manifest) -> str:
    labels = manifest.labels
    images = f" of the images {', '.join(manifest.images)}" if manifest.images else ""
    what = {"class": "classes", "none": "no labels", "vector": "labels"}[labels.kind]
    return f"{what} {', '.join(labels.names) if labels.kind == 'vector' else ''}".strip() + images


def _join(stores: Sequence[Store], folder: Path) -> Manifest:
    """Write the tables of joined stores into a folder, and return their manifest, which is not written.

    The samples are those of the first store, then those of the next. Classes that the first lacks follow its own, so that its
    labels stay the same.

    Args:
        stores: what to join, in order; see `_check_alike`.
        folder: an empty folder.

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
            part["label"] = codes[k](part["label"])
    try:
        sections = first.kind.join(stores, rows)
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
    for name in {*first.manifest.files, *first.kind.extra_files} & {*first.manifest.files} - {*files}:
        if not name.startswith(f"{COLUMNS}/"):
            files[name] = _copied(first.path / name, folder / name)
    columns = []
    for k, column in enumerate(first.manifest.columns):
        joint, found = _join_column([m.columns[k] for m in manifests], stores)
        columns.append(joint)
        readers = [ColumnReader(store.path, column, len(store)) for store in stores]
        lengths = [reader.lengths(np.arange(len(reader))) for reader in readers if column.ragged]
        files |= write_column(folder, joint, _values(readers, found), lengths)
        if name := joint.tokenizer_file:
            files[name] = _copied(first.path / name, folder / name)
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


def _join_names(found: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[_Codes]]:
    """Return all names, those of the first in its order, and what becomes of the numbers of each."""
    names = list(dict.fromkeys(name for some in found for name in some))
    place = {name: k for k, name in enumerate(names)}
    return tuple(names), [
        _Codes(None if list(some) == names[: len(some)] else np.array([place[name] for name in some], np.int64)) for some in found
    ]


def _join_column(found: Sequence[Column], stores: Sequence[Store]) -> tuple[Column, list[_Codes]]:
    """Return a column of joined stores, and what becomes of its numbers in each."""
    first = found[0]
    where = f"column {first.name} of {' and '.join(str(store.path) for store in stores)}"
    if len({(column.tokens, column.names if column.geometry else ()) for column in found}) > 1:
        raise PrepError(f"{where} was made with other tokenizers or keypoints: prepare both alike")
    if first.geometry or len({column.names for column in found}) == 1 == len({column.ids for column in found}):
        return first, [_Codes(None)] * len(found)
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


def _values(readers: Sequence[ColumnReader], codes: Sequence[_Codes]) -> Iterator[Array]:
    """Yield the values of a column of joined stores, with `codes` applied to them."""
    for reader, convert in zip(readers, codes, strict=True):
        for begin in range(0, len(reader), AT_ONCE):
            yield convert(reader.take(np.arange(begin, min(begin + AT_ONCE, len(reader)))))


def _copied(source: Path, target: Path) -> FileSum:
    target.parent.mkdir(exist_ok=True)
    return write_atomic(target, source.read_bytes())


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
