"""Targets: damaged files in the cache of a store in a bucket, and damaged answers of the bucket.

What is read is what was published, or an error; nothing is written outside of the cache.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import stores
from fastdata.errors import RemoteError, StoreError
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import RemoteFile, ShardCache
from fastdata.remote.reader import RemoteStore
from fastdata.store.store import Store
from target import Case, target
from target_stores import files_of

URL = "s3://bucket/store"
OUTSIDE = b"a file of somebody else"


class Answers(Bucket):
    """A bucket whose answers come from a function of (name, start, length): its class does the rest, as for a server."""

    def __init__(self, answer: Callable[[str, int, int | None], bytes]) -> None:
        self.url, self.plain, self._prefix = URL, True, ""

        self._api = SimpleNamespace(
            head=lambda _, name: {"size": len(answer(name, 0, None))},
            get=lambda _, name: SimpleNamespace(bytes=lambda: answer(name, 0, None), meta={"e_tag": None}),
            get_range=lambda _, path, start, length: answer(path, start, length),
        )
        self._quick = self._store = None
        self._errors = SimpleNamespace(GenericError=RemoteError)

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        yield


@dataclass
class OwnSession:
    """Fetches shards in this process, as a downloader does when it is asked."""

    bucket: Bucket
    folder: Path
    process: int = os.getpid()

    def manifest(self) -> bytes:
        return self.bucket.read("manifest.json", twice=True)

    def ask(self, *files: RemoteFile) -> None:
        for file in files:
            try:
                cache = ShardCache(self.folder)
                descriptor = cache.begin(file, lambda path: 0.0)
                assert descriptor is not None
                cache.fill(file, descriptor, partial(self.bucket.fetch, file.name, file.bytes, file.xxh3_128))
            except OSError as error:
                raise StoreError(str(error)) from None


def read_all(bucket: Bucket, folder: Path) -> Any:
    """Open a store through a cache, and return its labels and all of its records."""
    own = OwnSession(bucket, folder)
    remote = type("OwnStore", (RemoteStore,), {"session": own})(URL, {}, folder, None)
    store = Store(remote, kind=None)
    readers = [store.reader(variant, check=True) for variant in store.manifest.variants]
    records = [[bytes(reader.get(k)) for k in range(len(reader))] for reader in readers]
    return store.samples["label"].tolist(), store.names(), records


@cache
def published() -> dict[str, bytes]:
    return files_of(stores.masked)


@cache
def other() -> dict[str, bytes]:
    """Another store with files of the same names: two images have changed places, and so have their masks."""
    root = stores.folder()
    for folder in ("in", "masks"):
        shutil.copytree(stores.masked().parent / folder, root / folder)
        first, second = sorted(path for path in (root / folder).iterdir())[:2]
        data = first.read_bytes(), second.read_bytes()
        first.write_bytes(data[1])
        second.write_bytes(data[0])
    out = stores.fastdata.prep(root / "in", root / "o.fds", masks=root / "masks", workers=1).out
    return files_of(lambda: out)


def taken(files: dict[str, bytes]) -> Callable[[str, int, int | None], bytes]:
    """Answer from these files."""

    def answer(name: str, start: int, length: int | None) -> bytes:
        if name not in files:
            raise RemoteError(f"{URL}/{name}: there is no such object (404)", missing=True)
        return files[name][start : None if length is None else start + length]

    return answer


@cache
def whole_cache() -> Path:
    """A cache in which everything is."""
    folder = stores.folder() / "cache"
    read_all(Answers(taken(published())), folder)
    return folder


@cache
def whole() -> dict[str, bytes]:
    """Its files."""
    paths = [path for path in sorted(whole_cache().rglob("*")) if path.is_file() and path.suffix != ".tmp"]
    return {str(path.relative_to(whole_cache())): path.read_bytes() for path in paths}


def write(path: Path, data: bytes, name: str) -> None:
    """Write a file of the cache without a change of its times, as when a disk loses its bytes."""
    path.write_bytes(data)
    shutil.copystat(whole_cache() / name, path)


def disturb(path: Path, case: Case) -> None:
    """Put what a case says in the place of a file; sometimes a link, a folder, another file of the cache, or nothing."""
    rng = Random(case.data)
    path.unlink()
    what = rng.randrange(32) if case.data != case.original else 32
    outside = path.parents[len(Path(case.name).parts)] / "outside"
    if what == 0:
        path.symlink_to(outside)
    elif what == 1:
        path.mkdir()
    elif what in (3, 4):
        write(path, rng.choice(list(whole().values())), case.name)
    elif what in (6, 7):  # and the temporary file of what is fetched again leads elsewhere
        path.with_name(f"{path.name}.tmp").symlink_to(outside)
    elif what > 5:
        write(path, case.data, case.name)


@target(whole, exact="always", cases=1500)
def cached(case: Case) -> Any:
    """A file of a cache is damaged, replaced, or missing."""
    folder, outside = case.folder / "cache", case.folder / "outside"
    if not folder.exists():
        for name, data in whole().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(folder / name, data, name)
    outside.write_bytes(OUTSIDE)
    changed = folder / case.name
    disturb(changed, case)
    try:
        return read_all(Answers(taken(published())), folder)
    finally:
        assert outside.read_bytes() == OUTSIDE, "a file outside of the cache was written"
        assert {path.name for path in case.folder.iterdir()} == {"cache", "outside"}, "a file outside of the cache"
        if changed.is_dir() and not changed.is_symlink():
            shutil.rmtree(changed)
        changed.unlink(missing_ok=True)
        changed.with_name(f"{changed.name}.tmp").unlink(missing_ok=True)
        write(changed, case.original, case.name)


@cache
def expected(which: Callable[[], dict[str, bytes]]) -> Any:
    return read_all(Answers(taken(which())), stores.folder() / "cache")


@target(lambda: {"faults.bin": bytes(60)}, cases=1000)
def answered(case: Case) -> Any:
    """A bucket answers as the bytes of the case say, one for each request; the first says when another store replaces the first."""
    faults, rng, count = case.data, Random(case.data), 0
    replaced = faults[0] if faults and faults[0] else 1 << 20

    def answer(name: str, start: int, length: int | None) -> bytes:
        nonlocal count
        count += 1
        found = taken(published() if count < replaced else other())(name, start, length)
        fault = faults[count] % 8 if count < len(faults) and faults[count] else 0
        if fault == 1:
            return found[: rng.randrange(len(found) + 1)]
        if fault == 2:
            return found + bytes(rng.choice((1, 5000)))
        if fault == 3 and found:
            at = rng.randrange(len(found))
            return found[:at] + bytes([found[at] ^ 1 << rng.randrange(8)]) + found[at + 1 :]
        if fault == 4:
            return taken(published())(name, start + 1, length)
        if fault == 5:
            return rng.choice(list(published().values()))[:length]
        if fault == 6:
            raise RemoteError(f"{URL}/{name}: the server does not answer in time")
        if fault == 7:
            return taken(other())(name, start, length)
        return found

    folder = case.folder / "cache"
    try:
        found = read_all(Answers(answer), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert found in (expected(published), expected(other)), "a mixture of stores"
