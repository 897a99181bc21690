"""The folder of a store while it is made: who holds it, what in it is ours, and whether it fits the plan."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.plan import Plan, describe_difference, difference
from fastdata.store.files import MANIFEST, WORK, has_foreign, own_files, own_folders
from fastdata.store.format import read_manifest

__all__ = ["PLAN", "claimed", "clear", "is_finished", "refuse_store"]

PLAN = "plan.json"
STORE_MARK = b'"format": "fastdata"'


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold the folder alone: two runs at once would work against each other. The lock ends with the process."""
    if out.exists() and not (out.is_dir() and _ours(out)):
        raise PrepError(f"OUT {out} exists and is not a store; choose another name, or remove it yourself")
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrepError(f"another fastdata-prep is making {out} right now") from None
        yield
    finally:
        os.close(descriptor)


def _ours(out: Path) -> bool:
    """Whether a folder is empty, or holds shards, a manifest or a plan that were made here: many a project has a manifest.json."""
    own = own_files(out)
    if not has_foreign(out) and (any(path.suffix == ".mdb" for path in own) or all(path.parent != out for path in own)):
        return True
    marks = (out / MANIFEST, STORE_MARK), (out / WORK / PLAN, b'"fingerprint": "')
    return any(path.is_file() and mark in path.read_bytes() for path, mark in marks)


def refuse_store(source: Path) -> None:
    """Raise PrepError if SOURCE is a store."""
    manifest = source / MANIFEST
    if manifest.is_file() and STORE_MARK in manifest.read_bytes():
        raise PrepError(
            f"SOURCE {source} is a store already: fastdata info {source} says what it holds. To make another one, give what it was "
            f"made of; fastdata export {source} DIR writes its samples as files"
        )


def clear(out: Path, keep: set[Path]) -> None:
    """Remove what earlier runs made, the manifest first: what is left then is no store. Nobody else's files are touched."""
    for path in own_files(out):
        if path not in keep:
            path.unlink()
    for folder in own_folders(out):
        with suppress(OSError):  # not empty
            folder.rmdir()


def is_finished(out: Path, plan: Plan, overwrite: bool) -> bool:
    """Whether this very store is finished already. Makes way for the plan if `overwrite` says so, else refuses another's folder."""
    if overwrite and not _begun(out, plan):
        clear(out, set())
    elif (out / MANIFEST).exists():
        old = read_manifest(out)
        if old.fingerprint == plan.fingerprint:
            shutil.rmtree(out / WORK, ignore_errors=True)  # a run that was killed at its very end leaves it
            return True
        was = {"options": old.options, "libraries": old.libraries}
        _refuse(out, describe_difference(was, plan.body(), kinds.find(plan.options.kind), kinds.find(old.kind)))
    elif (out / WORK / PLAN).exists() and (changed := difference(out / WORK / PLAN, plan)):
        _refuse(out, changed)
    return False


def _begun(out: Path, plan: Plan) -> bool:
    """Whether an unfinished run of this very plan is there: the command that was interrupted goes on, `overwrite` in it or not."""
    try:
        fingerprint = json.loads((out / WORK / PLAN).read_bytes())["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(fingerprint == plan.fingerprint and not (out / MANIFEST).exists())


def _refuse(out: Path, changed: str) -> NoReturn:
    raise PrepError(
        f"{out} was made, or begun, otherwise:\n{changed}\nGive the same options and inputs, another OUT, or --overwrite."
    )
