"""Check that a store still has the bytes that were written, and name the shards and samples that do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from fastdata.errors import FastDataError
from fastdata.store.files import file_sum, shard_file
from fastdata.store.format import Manifest, Variant, read_current
from fastdata.store.place import Place
from fastdata.store.store import Store

__all__ = ["verify"]

Tick = Callable[[int], None]


def verify(path: str | os.PathLike[str], *, quick: bool = False, tick: Tick = lambda size: None) -> Iterator[str]:
    """Check a store and yield a line for each problem.

    A quick check covers the manifest, the tables and indices, and the size of every shard. A full check also reads every byte of
    every shard, and names the samples whose records differ.

    Args:
        path: the store, a folder or a Place.
        quick: do not read the bytes of the shards.
        tick: called with the size in bytes of each shard that is done.
    """
    try:
        root, manifest = read_current(Path(path))
    except FastDataError as error:
        yield str(error)
        return
    if isinstance(path, Place):
        yield from _check_place(path, manifest, tick)
        return
    problems = list(_check_files(root, manifest))
    yield from problems
    store = None if problems else _Damaged(root, kind=None)
    for variant in manifest.variants:
        for shard, total in enumerate(variant.shards):
            where = root / shard_file(variant.name, shard)
            if not where.is_file() or where.stat().st_size != total.bytes:
                found = f"has {where.stat().st_size} bytes, the manifest says {total.bytes}" if where.is_file() else "is missing"
                yield f"{where} {found}"
            elif not quick and file_sum(where) != total:
                yield f"{where} is not what was written: its checksum differs"
                if store is not None:
                    yield from _check_records(store, variant, shard)
            tick(total.bytes)


def _check_place(place: Place, manifest: Manifest, tick: Tick) -> Iterator[str]:
    """Read all shards of a store that is elsewhere. Its tables were compared with their checksums when they came."""
    for variant in manifest.variants:
        for shard, total in enumerate(variant.shards):
            try:
                place.check(variant, shard)
            except FastDataError as error:
                yield str(error)
            tick(total.bytes)


def _check_files(root: Path, manifest: Manifest) -> Iterator[str]:
    for name, total in manifest.files.items():
        if not (root / name).is_file():
            yield f"{root / name} is missing"
        elif file_sum(root / name) != total:
            yield f"{root / name} is not what was written: its size or checksum differs"


class _Damaged(Store):
    """A store of which any shard may be damaged."""

    def _check_sizes(self) -> None:
        pass


def _check_records(store: Store, variant: Variant, shard: int) -> Iterator[str]:
    """Yield the records of a shard that are not what was written."""
    index, path = store.index(variant), store.shard(variant, shard)
    names, firsts = store.names(), store.first_records(variant)
    with path.open("rb") as file:
        for row in range(*index.starts[shard : shard + 2]):
            file.seek(int(index.offsets[row]))
            if xxhash.xxh3_64_intdigest(file.read(index.words[3 * row + 1])) != index.words[3 * row + 2]:
                record = f"record {row}"
                if firsts is not None:
                    sample = int(np.searchsorted(firsts, row, "right")) - 1
                    record = f"sample {sample} ({names[sample]!r})"
                yield f"{path}: {record} is not what was written: its checksum differs"
