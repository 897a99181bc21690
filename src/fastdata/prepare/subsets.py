"""Make a store of some samples of another, which refers to the shards of that one."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.prepare.folder import claimed, writing
from fastdata.prepare.join import write_array, write_column
from fastdata.store.column import TEXTS, Column
from fastdata.store.columns import ColumnReader
from fastdata.store.files import IMAGES, MANIFEST, NAMES, REJECTS, ROWS, SAMPLES, clear, file_sum, is_store, write_atomic
from fastdata.store.format import Manifest
from fastdata.store.store import Store

__all__ = ["subset"]

Array = np.ndarray[Any, np.dtype[Any]]
StrPath = str | os.PathLike[str]
CONDITION = re.compile(r"\s*([\w-]+)\s*(<=|>=|==|!=|=|<|>)\s*(.*?)\s*", re.DOTALL)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def subset(
    store: StrPath,
    out: StrPath,
    *,
    ids: Iterable[int] | None = None,
    where: Sequence[str] = (),
    fraction: float | None = None,
    seed: int = 0,
) -> Path:
    """Make a store of some of the samples of a store of images. It refers to the shards of that store, and has no copy of them.

    Samples keep their order, labels and class numbers. What is given is combined: the fraction is drawn from the samples that the
    rest leaves.

    Args:
        store: the store, which must stay where it is, relative to `out`.
        out: the store to make.
        ids: the samples' numbers.
        where: conditions that must all hold, such as "label=cat", "width>=512" or "source!=web": the name of a column, or label; an
            operator; a number, a text, or the name of a class.
        fraction: of the samples, drawn by `seed`.
        seed: of the draw.

    Returns:
        The path of the new store.

    Raises:
        PrepError: no sample is left, a condition does not fit, or the store is of another kind.
        StoreError: there is no such store.
    """
    opened = Store(store, kind=None)
    if not opened.kind.subsets:
        raise PrepError(f"{opened.path} holds {opened.kind.says}: only stores of images have subsets on disk; use dataset.subset")
    rows = _chosen(opened, ids, where, fraction, seed)
    root = Path(out).absolute()
    if opened.shards in (root, *root.parents):
        raise PrepError(f"OUT {root} is, or lies inside of, {opened.shards}, whose shards it would refer to: choose another name")
    with writing(root), claimed(root):
        if is_store(root):
            raise PrepError(f"OUT {root} is a store already: choose another name, or remove it")
        clear(root)
        write_atomic(root / MANIFEST, _write(opened, rows, root).to_json())
    return root


def _chosen(store: Store, ids: Iterable[int] | None, where: Sequence[str], fraction: float | None, seed: int) -> Array:
    """Return the rows of a subset, in order."""
    if ids is None and not where and fraction is None:
        raise ValueError("nothing says which samples: give --ids, --where or --fraction")
    keep = np.ones(len(store), bool)
    if ids is not None:
        numbers = np.array(list(ids), np.int64)
        if len(wrong := numbers[(numbers < 0) | (numbers >= len(store))]):
            raise PrepError(f"--ids has {wrong[0]}, but {store.path} has the samples 0 to {len(store) - 1}")
        keep[:] = False
        keep[numbers] = True
    for condition in where:
        keep &= _holds(store, condition)
    rows = np.flatnonzero(keep)
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise ValueError(f"--fraction is {fraction}, but must be above 0, and at most 1")
        drawn = np.random.Generator(np.random.Philox(seed)).permutation(len(rows))[: round(fraction * len(rows))]
        rows = rows[np.sort(drawn)]
    if not len(rows):
        raise PrepError(f"no sample of {store.path} is left: choose other --ids, --where or --fraction")
    return rows


def _holds(store: Store, condition: str) -> Array:
    """Return of which samples a condition holds."""
    found = CONDITION.fullmatch(condition)
    if found is None:
        raise PrepError(f"--where {condition!r} is no condition: give a name, an operator and a value, such as label=cat")
    name, sign, value = found.groups()
    columns = {column.name: column for column in store.manifest.columns}
    labels = store.manifest.labels
    if name == "label" and name not in columns and labels.kind == "class":
        return np.asarray(OPERATORS[sign](store.samples["label"], _number(condition, value, labels.names)))
    if name not in columns:
        known = [*["label"] * (labels.kind == "class"), *columns]
        raise PrepError(f"--where {condition!r}: {store.path} has no column {name}; it has {', '.join(known) or 'none'}")
    column = columns[name]
    if column.many or column.shape or column.type in ("json", "bytes"):
        raise PrepError(f"--where {condition!r}: column {column} does not hold one number or text for each sample")
    reader, every = ColumnReader(store.path, column, len(store)), np.arange(len(store))
    if column.type in TEXTS:
        if sign not in ("=", "==", "!="):
            raise PrepError(f"--where {condition!r}: column {column} is text, which is compared with = or !=")
        return np.array([OPERATORS[sign](text, value) for text in reader.objects(every)], bool)
    return np.asarray(OPERATORS[sign](reader.take(every), _number(condition, value, column.names, column)))


def _number(condition: str, value: str, names: Sequence[str], column: Column | None = None) -> Any:
    """Return the number that a value means."""
    if value in names:
        return names.index(value)
    if column is not None and column.type == "bool" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value) if not value.lstrip("-").isdecimal() else int(value)
    except ValueError:
        known = f", nor one of {', '.join(names[:20])}" if names else ""
        raise PrepError(f"--where {condition!r}: {value!r} is not a number{known}") from None


def _write(store: Store, rows: Array, root: Path) -> Manifest:
    """Write the tables of a subset, and return its manifest."""
    manifest = store.manifest
    records = rows if store.rows is None else np.asarray(store.rows)[rows]
    files = {SAMPLES: write_array(root / SAMPLES, [store.samples[rows]]), ROWS: write_array(root / ROWS, [records.astype("<i8")])}
    if IMAGES in manifest.files:
        files[IMAGES] = write_array(root / IMAGES, [np.load(store.path / IMAGES, mmap_mode="r")[rows]])
    names = store.names()
    write_atomic(root / NAMES, "".join(json.dumps(names[row]) + "\n" for row in rows.tolist()).encode())
    write_atomic(root / REJECTS, b"")
    files |= {name: file_sum(root / name) for name in (NAMES, REJECTS)}
    for column in manifest.columns:
        files |= write_column(root, column, [(ColumnReader(store.path, column, len(store)), rows)])
        if name := column.tokenizer_file:
            write_atomic(root / name, (store.path / name).read_bytes())
            files[name] = file_sum(root / name)
    variants = tuple(replace(variant, records=manifest.shard_records(variant)) for variant in manifest.variants)
    ends = np.cumsum(manifest.shard_records(manifest.variants[0]))
    counts = np.bincount(np.searchsorted(ends, records, "right"), minlength=len(ends))
    digest = xxhash.xxh3_128_hexdigest(records.tobytes())
    return replace(
        manifest,
        num_samples=len(rows),
        num_rejects=0,
        shard_samples=tuple(counts.tolist()),
        variants=variants,
        files=files,
        fingerprint=xxhash.xxh3_128_hexdigest(json.dumps(["subset", manifest.fingerprint, digest]).encode()),
        added="",
        shards_in=os.path.relpath(store.shards, root.resolve()),
    )
