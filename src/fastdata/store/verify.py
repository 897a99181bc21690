"""Check that a store still has the bytes that were written, and name the shards and samples that do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import FastDataError
from fastdata.store.files import check_size, check_sum, shard_file
from fastdata.store.manifest import Variant, read_current
from fastdata.store.store import Place, Store

__all__ = ["verify"]


def verify(path: str | os.PathLike[str], *, quick: bool = False, tick: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """Check a store and yield a line for each problem; of a damaged shard, also for each sample whose record differs.

    Args:
        path: the store, a folder or a Place.
        quick: check the manifest, the tables and the sizes of shards, but do not read the bytes of the shards.
        tick: called with the size in bytes of each shard that is done.
    """
    try:
        root, manifest = read_current(Path(path))
    except FastDataError as error:
        yield str(error)
        return
    remote = path if isinstance(path, Place) else None  # whose tables were compared with their checksums when they came
    tables = {} if remote is not None else manifest.files
    problems = [line for name, total in tables.items() for line in _problems(check_sum, root / name, total)]
    yield from problems
    for variant in manifest.variants:
        for shard, total in enumerate(variant.shards):
            file = root / shard_file(variant.name, shard)
            if remote is not None:
                yield from _problems(remote.check, variant, shard)
            elif wrong := [*_problems(check_size, file, total.bytes)]:
                yield from wrong
            elif not quick and (wrong := [*_problems(check_sum, file, total)]):
                yield from wrong
                if not problems:
                    yield from _damaged_records(Store(root, kind=None, whole=False), variant, shard)
            tick(total.bytes)


def _problems(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Yield what a check raises."""
    try:
        check(*arguments)
    except FastDataError as error:
        yield str(error)


def _damaged_records(store: Store, variant: Variant, shard: int) -> Iterator[str]:
    """Yield the records of a shard that are not what was written."""
    index, path = store.index(variant), store.shard(variant, shard)
    names = store.names()
    firsts = store.samples["first"] if "first" in (store.samples.dtype.names or ()) else np.arange(len(store))
    with path.open("rb") as file:
        for row in range(*index.starts[shard : shard + 2]):
            start, size, xxh3 = index.words[3 * row : 3 * row + 3]
            file.seek(start)
            if xxhash.xxh3_64_intdigest(file.read(size)) != xxh3:
                sample = int(np.searchsorted(firsts, row, "right")) - 1
                record = f"sample {sample} ({names[sample]!r})" if store.kind.named else f"record {row}"
                yield f"{path}: {record} is not what was written: its checksum differs"
