"""verify: is a store still what was written? Names the shard and the sample that are not."""

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
from fastdata.store.format import Manifest, Variant, read_manifest
from fastdata.store.shards import ShardReader
from fastdata.store.store import Store

__all__ = ["verify"]

WALK = "import sys; from fastdata.store.verify import walk; walk(*sys.argv[1:])"
Tick = Callable[[int], None]


def verify(path: str | os.PathLike[str], *, quick: bool = False, tick: Tick = lambda size: None) -> Iterator[str]:
    """Check a store and yield a line for each thing that is wrong.

    Quick: the manifest, the tables, the size of every shard, and that LMDB finds as many records as it should.
    In full, also every byte of every shard; where a shard of images or arrays differs, the checksum of each of its samples.

    Args:
        path: the store.
        quick: leave the bytes of the shards unread.
        tick: called with the bytes of each shard when it is done.
    """
    root = Path(path)
    try:
        manifest = read_manifest(root)
    except FastDataError as error:
        yield str(error)
        return
    sound = True
    for problem in _check_files(root, manifest):
        sound = False
        yield problem
    for variant in manifest.variants:
        look_into = []
        for shard, total in enumerate(variant.shards):
            where = manifest.shard_path(root, variant, shard)
            if not where.is_file() or where.stat().st_size != total.bytes:
                found = f"has {where.stat().st_size} bytes, the manifest says {total.bytes}" if where.is_file() else "is missing"
                yield f"{where} {found}"
            elif quick:
                look_into.append(shard)
            elif file_sum(where) != total:
                yield f"{where} is not what was written: its checksum differs"
                if sound:
                    look_into.append(shard)
            tick(total.bytes)
        yield from _walk_apart(root, manifest, variant, look_into, full=not quick)


def _check_files(root: Path, manifest: Manifest) -> Iterator[str]:
    for name, total in manifest.files.items():
        if not (root / name).is_file():
            yield f"{root / name} is missing"
        elif file_sum(root / name) != total:
            yield f"{root / name} is not what was written: its size or checksum differs"


def _walk_apart(root: Path, manifest: Manifest, variant: Variant, shards: list[int], *, full: bool) -> Iterator[str]:
    """Read shards that may be damaged in a process of its own: LMDB follows what a bad page says, and may crash."""
    kind = manifest.kind, kinds.home(manifest.kind)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    while shards:
        command = [
            sys.executable,
            "-c",
            WALK,
            str(root),
            variant.name,
            ",".join(map(str, shards)),
            "full" if full else "quick",
            *kind,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        at = shards[0]
        for line in done.stdout.splitlines():
            at, problem = json.loads(line)
            if problem:
                yield f"{root / shard_file(variant.name, at)}: {problem}"
        if not done.returncode:
            return
        end = signal.Signals(-done.returncode).name if done.returncode < 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
        yield f"{root / shard_file(variant.name, at)}: its structure is damaged ({end})"
        shards = shards[shards.index(at) + 1 :]  # go on behind the one that ended the process


class _Damaged(Store):
    """A store whose other shards may be damaged too."""

    def _check_sizes(self) -> None:
        pass


def walk(path: str, variant_name: str, shards: str, how: str, kind: str, home: str) -> None:
    """Print what is wrong with the records of some shards ("3,7"), as JSON pairs of shard and problem; an empty one before each."""
    kinds.register(kind, home)
    manifest = read_manifest(Path(path))
    variant = next(v for v in manifest.variants if v.name == variant_name)
    for shard in map(int, shards.split(",")):
        _say(shard, "")
        where, count = manifest.shard_path(Path(path), variant, shard), manifest.shard_records(variant)[shard]
        reader = ShardReader([where], [count], [variant.shards[shard].bytes])
        if (found := reader.count(0)) != count:
            _say(shard, f"it has {found} records, the manifest says {count}")
        if how == "full" and kinds.find(manifest.kind).checksums:  # the others have sums of whole shards only
            _check_records(_Damaged(path, kind=None), f"{variant_name}/xxh3", shard, reader)


def _check_records(store: Store, column: str, shard: int, reader: ShardReader) -> None:
    names, start = store.names(), sum(store.manifest.shard_samples[:shard])
    rows = range(start, start + store.manifest.shard_samples[shard])
    for row, records in zip(rows, store.kind.records(store, rows), strict=True):
        digest = xxhash.xxh3_64()
        try:
            for k in records:
                digest.update(reader.get(k))
        except FastDataError as error:
            _say(shard, f"sample {row} ({names[row]!r}): {error}")
            continue
        if digest.intdigest() != int(store.samples[column][row]):
            _say(shard, f"sample {row} ({names[row]!r}) is not what was written: its checksum differs")


def _say(shard: int, problem: str) -> None:
    sys.stdout.write(json.dumps([shard, problem]) + "\n")
    sys.stdout.flush()  # the next record may take the process down
