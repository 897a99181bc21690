"""Targets: damaged files of a store, with a manifest that fits their sizes, as a hostile one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastdata
import stores
from fastdata.store.files import NAMES
from fastdata.store.store import Store, verify
from target import TARGETS, Case, Target

LARGEST = 200_000  # bytes of a file that is damaged
STORES: dict[str, Callable[[], Path]] = {
    "rgb": partial(stores.store, "rgb", size=16, resize="crop"),
    "jpeg": partial(stores.store, "jpeg", size=48),
    "original": partial(stores.store, "original", size=None),
    "masks": stores.masked,
    "several": stores.several,
    "tokens": stores.tokens,
    "arrays": stores.masked_arrays,
}


def files_of(build: Callable[[], Path]) -> dict[str, bytes]:
    """The files of a store by their names in it."""
    root = build()
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size < LARGEST]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def damaged_store(build: Callable[[], Path], case: Case, *, fitting: bool) -> Path:
    """A store in which one file is that of the case. fitting: the manifest has its size."""
    root, out = build(), case.folder / "damaged.fds"
    for path in root.rglob("*") if not out.exists() else ():
        if path.is_file():
            (out / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            (out / path.relative_to(root)).symlink_to(path)
    manifest, changed = out / "manifest.json", out / case.name
    for path in {manifest, changed}:
        path.unlink()
    if changed != manifest:
        manifest.write_bytes(_fitting(root, case) if fitting else (root / "manifest.json").read_bytes())
    changed.write_bytes(case.data)
    return out


def restore(build: Callable[[], Path], out: Path, name: str) -> None:
    """Put the file of a case back to what it was."""
    for part in {name, "manifest.json"}:
        (out / part).unlink()
        (out / part).symlink_to(build() / part)


def _fitting(root: Path, case: Case) -> bytes:
    body = json.loads((root / "manifest.json").read_bytes())
    if case.name in body["files"]:
        body["files"][case.name]["bytes"] = len(case.data)
    variant, _, shard = case.name.partition("/shard-")
    for one in body["variants"] if shard else ():
        if one["name"] == variant:
            one["shards"][int(shard.removesuffix(".mdb"))]["bytes"] = len(case.data)
    return json.dumps(body).encode()


def read_store(build: Callable[[], Path], case: Case, *, fitting: bool = True, memory: bool = False) -> Any:
    """Open a store and read what it says of itself, its first and last samples, and a batch. memory: load it."""
    path = damaged_store(build, case, fitting=fitting)
    try:
        store = Store(path, kind=None)
        more: dict[str, Any] = {"block_size": 8, "mode": "sequential"} if store.manifest.kind == "tokens" else {}
        dataset = fastdata.RAMDataset(path, shared=False, **more) if memory else fastdata.open(path, **more)
        count = len(dataset)
        found = [count, store.rejects(), *([store.names()[-1:]] if NAMES in store.manifest.files else [])]
        found += [dataset[k] for k in sorted({0, count // 2, count - 1}) if 0 <= k < count]
        if store.manifest.kind == "images" and count:
            found += [values[k] for values in getattr(dataset, "columns", {}).values() for k in (0, count - 1)]
    finally:
        restore(build, path, case.name)
    return found


def verify_store(build: Callable[[], Path], case: Case) -> None:
    """Any change of any file but the manifest is found."""
    if case.name == "manifest.json" or case.data == case.original:
        return
    path = damaged_store(build, case, fitting=False)
    try:
        problem = next(verify(path), None)
    finally:
        restore(build, path, case.name)
    assert problem is not None, "verify finds nothing"


def files_with_sums(build: Callable[[], Path], *, memory: bool) -> dict[str, bytes]:
    """The files that are compared with checksums when they are read: not records of tokens and arrays on the disk."""
    all_records = memory or Store(build(), kind=None).manifest.kind == "images"
    return {name: data for name, data in files_of(build).items() if name != "manifest.json" and (all_records or ".mdb" not in name)}


for name, build in STORES.items():
    TARGETS[f"store_{name}"] = Target(partial(read_store, build), partial(files_of, build), cases=800)
    TARGETS[f"verify_{name}"] = Target(partial(verify_store, build), partial(files_of, build), cases=300, allowed=())
    for memory in (False, True) if name != "several" else (False,):
        read, files = partial(read_store, build, fitting=False, memory=memory), partial(files_with_sums, build, memory=memory)
        TARGETS[f"samples_{name}{'_in_memory' * memory}"] = Target(read, files, exact="always", cases=200)
