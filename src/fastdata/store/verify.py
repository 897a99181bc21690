"""Check that a store still has the bytes that were written, and name the files that do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError
from fastdata.store.files import check_size, check_sum, shard_file
from fastdata.store.manifest import read_current
from fastdata.store.store import Place

__all__ = ["verify"]


def verify(path: str | os.PathLike[str], *, quick: bool = False, tick: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """Check a store, a folder or a Place, and yield a line for each problem.

    quick: do not read the bytes of the shards. tick: called with the size in bytes of each shard that is done.
    """
    try:
        root, manifest = read_current(Path(path))
    except FastDataError as error:
        yield str(error)
        return
    if not isinstance(path, Place):  # whose tables were compared with their checksums when they came
        for name, total in manifest.files.items():
            yield from _problems(check_sum, root / name, total)
    for variant in manifest.variants:
        for shard, total in enumerate(variant.shards):
            file = root / shard_file(variant.name, shard)
            if isinstance(path, Place):
                yield from _problems(path.check, variant, shard)
            elif wrong := [*_problems(check_size, file, total.bytes)]:
                yield from wrong
            elif not quick:
                yield from _problems(check_sum, file, total)
            tick(total.bytes)


def _problems(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Yield what a check raises."""
    try:
        check(*arguments)
    except FastDataError as error:
        yield str(error)
