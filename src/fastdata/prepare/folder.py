"""The folder of a store while it is made: its lock, which files in it are ours, whether it fits the plan, and replacing a store.

A store that replaces another one is made in the work folder of that. When it is finished, its folder is moved beside the files of
the old store. Then the manifest of that is removed, from which moment readers get the new store, and its other files; and the files
of the new one are linked to where they belong, the manifest last. So the folder holds a whole store at any moment, and ends as if
there had never been another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import structs

from fastdata.errors import PrepError, StoreError, lacking
from fastdata.prepare.plan import Work, describe_difference, difference, plan_folder, plan_path
from fastdata.store.files import LOCK, MANIFEST, NEXT, WORK, clear, has_foreign, is_store, link, own_files, sync
from fastdata.store.manifest import read_manifest

__all__ = ["claimed", "clear_work", "is_finished", "is_settled", "is_stored", "replace_store", "settle", "writing"]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none, such as Lustre without "flock"


@contextmanager
def writing(out: Path | str) -> Iterator[None]:
    """Turn errors of the disk into a StoreError that says how to go on."""
    try:
        yield
    except OSError as error:
        why = lacking(error) or error
        raise StoreError(f"cannot write {out}: {why}\nWhat is finished is kept; run the same command again.") from error


@contextmanager
def claimed(out: Path, *, share: bool = False) -> Iterator[None]:
    """Make the folder and lock it, until the process ends. share: with tasks, which publish whole files of the same bytes."""
    if out.exists() and not (out.is_dir() and _ours(out)):
        raise PrepError(f"OUT {out} exists and is not a store; choose another name, or remove it yourself")
    lock = out / WORK / LOCK
    descriptor = _locked(lock, fcntl.LOCK_SH if share else fcntl.LOCK_EX)
    if descriptor is None:
        raise PrepError(f"another fastdata-prep is making {out} right now")
    try:
        yield
    finally:
        if not plan_path(plan_folder(out)).exists() and is_settled(out):  # the run was refused, or it is finished
            with suppress(OSError):
                lock.unlink(missing_ok=True)
                lock.parent.rmdir()
        os.close(descriptor)


def _locked(lock: Path, kind: int) -> int | None:
    """Return a descriptor of a locked file; None: another process has the lock.

    It is a file opened for writing, because NFS can lock nothing else.
    """
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            return descriptor
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        os.close(descriptor)  # who had it has finished and removed it


def _ours(out: Path) -> bool:
    """Return whether a folder is empty or was made by prep. A manifest.json alone does not tell: other programs write one too."""
    if is_store(out):
        return True
    own = own_files(out)
    if not has_foreign(out) and (any(path.suffix == ".mdb" for path in own) or all(path.parent != out for path in own)):
        return True
    plan = plan_path(out)
    return plan.is_file() and b'"fingerprint": "' in plan.read_bytes()


def clear_work(work: Work) -> None:
    """Remove what only an unfinished store needs."""
    if work.remote is not None:
        work.remote.release()
    shutil.rmtree(work.store / WORK if work.remote is None else work.out, ignore_errors=True)


def is_stored(work: Work) -> bool:
    """Return whether the store of this plan is finished, and if it is to replace another one, perhaps not in its place yet."""
    if work.remote is not None:
        return work.remote.finished
    for folder in [work.out] if work.out.exists() else [work.store / NEXT, work.store]:
        with suppress(StoreError):
            return read_manifest(folder).fingerprint == work.plan.fingerprint
    return False


def is_finished(work: Work) -> bool:
    """Return whether the store of this plan is finished."""
    out, plan, changed = work.out, work.plan, ""
    if (out / MANIFEST).exists():
        old = read_manifest(out)
        if old.fingerprint == plan.fingerprint:
            clear_work(work)  # a run that is killed at its very end leaves it
            return True
        changed = describe_difference(structs.asdict(old), {**vars(plan), "options": plan.recorded_options(), "machine": {}})
    elif plan_path(out).exists():
        changed = difference(work)
    if changed:
        raise PrepError(
            f"{work.place} was made, or begun, with other options or inputs:\n{changed}\n"
            "Give the same options and inputs, another OUT, or --overwrite."
        )
    return False


def is_settled(root: Path) -> bool:
    """Return whether no store has begun to take another one's place without being done."""
    return not (root / NEXT / MANIFEST).exists()


def replace_store(work: Work) -> None:
    """Put a finished store in the place of the one around it. If another process does it already, leave it to that."""
    with suppress(FileNotFoundError):
        work.out.rename(work.store / NEXT)
        settle(work.store)


def settle(root: Path) -> None:
    """Make a finished store beside the files of another one the only store in a folder, also if a killed process has begun it."""
    folder = root / NEXT
    if not is_settled(root):
        sync(root)
        new = [path for path in own_files(folder) if folder / WORK not in path.parents and path.suffix != ".tmp"]
        clear(root, {path for path in own_files(root) if path.is_relative_to(folder) or path.is_relative_to(root / WORK)})
        for path in [*new[1:], new[0]]:  # own_files has the manifest first
            target = root / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            if path.name == MANIFEST:
                for parent in {root, *(root / file.relative_to(folder).parent for file in new)}:
                    sync(parent)
            link(path, target)
        sync(root)
    if folder.exists():
        clear(folder)
        with suppress(OSError):  # not empty
            folder.rmdir()
