"""The folder of a store while it is made: its lock, which files in it are ours, and whether it fits the plan."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.plan import Plan, describe_difference, difference
from fastdata.store.files import MANIFEST, WORK, has_foreign, is_store, own_files, own_folders
from fastdata.store.format import read_manifest

__all__ = ["PLAN", "claimed", "clear", "is_finished", "refuse_store"]

PLAN = "plan.json"


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make the folder and lock it, so that only one run works in it. The lock ends with the process."""
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
    """Return whether a folder is empty or was made by prep. A manifest.json alone does not tell: other programs write one too."""
    own = own_files(out)
    if not has_foreign(out) and (any(path.suffix == ".mdb" for path in own) or all(path.parent != out for path in own)):
        return True
    plan = out / WORK / PLAN
    return is_store(out) or (plan.is_file() and b'"fingerprint": "' in plan.read_bytes())


def refuse_store(source: Path) -> None:
    """Raise PrepError if SOURCE is a store."""
    if is_store(source):
        raise PrepError(
            f"SOURCE {source} is a store already: fastdata info {source} shows what it holds. To make another store, give the "
            f"original SOURCE, or write the samples as files: fastdata export {source} DIR"
        )


def clear(out: Path, keep: set[Path]) -> None:
    """Remove the files of earlier runs, the manifest first, so that an interruption leaves no store. Keep all other files."""
    for path in own_files(out):
        if path not in keep:
            path.unlink()
    for folder in own_folders(out):
        with suppress(OSError):  # not empty
            folder.rmdir()


def is_finished(out: Path, plan: Plan, overwrite: bool) -> bool:
    """Return whether the store of this plan is finished. Clear the folder if `overwrite` is set and it cannot be resumed.

    Raises:
        PrepError: the folder belongs to another plan, and `overwrite` is not set.
    """
    changed = ""
    if overwrite and not _is_resumable(out, plan):
        clear(out, set())
    elif (out / MANIFEST).exists():
        old = read_manifest(out)
        if old.fingerprint == plan.fingerprint:
            shutil.rmtree(out / WORK, ignore_errors=True)  # a run that is killed at its very end leaves it
            return True
        columns = [column.as_json() for column in old.columns]
        before = {"options": old.options, "libraries": old.libraries, "columns": columns}
        changed = describe_difference(before, plan.body(), kinds.find(plan.options.kind), kinds.find(old.kind))
    elif (out / WORK / PLAN).exists():
        changed = difference(out / WORK / PLAN, plan)
    if changed:
        raise PrepError(
            f"{out} was made, or begun, with other options or inputs:\n{changed}\n"
            "Give the same options and inputs, another OUT, or --overwrite."
        )
    return False


def _is_resumable(out: Path, plan: Plan) -> bool:
    """Return whether there is an unfinished run of this plan: a command with --overwrite that was interrupted continues."""
    try:
        fingerprint = json.loads((out / WORK / PLAN).read_bytes())["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(fingerprint == plan.fingerprint and not (out / MANIFEST).exists())
