"""Check that a store still has the bytes that were written, and name the shards and samples that do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import xxhash

from fastdata import kinds
from fastdata.errors import FastDataError
from fastdata.store.files import file_sum, shard_file
from fastdata.store.format import Manifest, Variant, read_current, read_manifest
from fastdata.store.place import Place
from fastdata.store.shards import ShardReader
from fastdata.store.store import Store

__all__ = ["verify"]

WALK = "import sys; from fastdata.store.verify import walk; walk(*sys.argv[1:])"
Tick = Callable[[int], None]


def verify(path: str | os.PathLike[str], *, quick: bool = False, tick: Tick = lambda size: None) -> Iterator[str]:
    """Check a store and yield a line for each problem.

    A quick check covers the manifest, the tables, the size of every shard, and the number of records in each. A full check also
    reads every byte of every shard. If a shard of images or arrays differs, it checks each of its samples.

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
    for variant in manifest.variants:
        inspect = []
        for shard, total in enumerate(variant.shards):
            where = root / shard_file(variant.name, shard)
            if not where.is_file() or where.stat().st_size != total.bytes:
                found = f"has {where.stat().st_size} bytes, the manifest says {total.bytes}" if where.is_file() else "is missing"
                yield f"{where} {found}"
            elif quick:
                inspect.append(shard)
            elif file_sum(where) != total:
                yield f"{where} is not what was written: its checksum differs"
                if not problems:
                    inspect.append(shard)
            tick(total.bytes)
        yield from _inspect(root, manifest, variant, inspect, "quick" if quick else "full")


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


def _inspect(root: Path, manifest: Manifest, variant: Variant, shards: list[int], how: str) -> Iterator[str]:
    """Yield the problems of shards. `walk` reads them in another process, which LMDB may crash on a damaged page."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    while shards:
        arguments = str(root), variant.name, ",".join(map(str, shards)), how
        done = subprocess.run([sys.executable, "-c", WALK, *arguments], capture_output=True, text=True, env=env, check=False)
        shard = shards[0]
        for line in done.stdout.splitlines():
            shard, problem = json.loads(line)
            if problem:
                yield f"{root / shard_file(variant.name, shard)}: {problem}"
        if not done.returncode:
            return
        end = signal.Signals(-done.returncode).name if done.returncode < 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
        yield f"{root / shard_file(variant.name, shard)}: its structure is damaged ({end})"
        shards = shards[shards.index(shard) + 1 :]  # continue after the shard that ended the process


class _Damaged(Store):
    """A store of which any shard may be damaged."""

    def _check_sizes(self) -> None:
        pass


def walk(path: str, variant_name: str, shards: str, how: str) -> None:
    """Print the problems of some shards ("3,7") as JSON pairs of shard and problem; an empty problem announces a shard."""
    manifest = read_manifest(Path(path))
    variant = next(v for v in manifest.variants if v.name == variant_name)
    for shard in map(int, shards.split(",")):
        _report(shard, "")
        count = manifest.shard_records(variant)[shard]
        where = Path(path) / shard_file(variant_name, shard)
        reader = ShardReader([where], [count], [variant.shards[shard].bytes])
        try:
            reader.open(0)
        except FastDataError as error:
            _report(shard, str(error))
            continue
        if how == "full" and kinds.find(manifest.kind).checksums:  # other kinds have checksums of whole shards only
            _check_records(_Damaged(path, kind=None), variant, shard, reader)


def _check_records(store: Store, variant: Variant, shard: int, reader: ShardReader) -> None:
    sums = store.field(variant, "xxh3")
    names, start = store.names(), sum(store.manifest.shard_samples[:shard])
    rows = range(start, start + store.manifest.shard_samples[shard])
    for row, records in zip(rows, store.kind.records(store, rows), strict=True):
        digest = xxhash.xxh3_64()
        try:
            for k in records:
                digest.update(reader.get(k))
        except FastDataError as error:
            _report(shard, f"sample {row} ({names[row]!r}): {error}")
            continue
        if digest.intdigest() != int(sums[row]):
            _report(shard, f"sample {row} ({names[row]!r}) is not what was written: its checksum differs")


def _report(shard: int, problem: str) -> None:
    sys.stdout.write(json.dumps([shard, problem]) + "\n")
    sys.stdout.flush()  # the next record may crash the process
