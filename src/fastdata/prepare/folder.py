"""The folder of a store while it is made: its lock, which files in it are ours, and whether it fits the plan."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import structs

from fastdata import kinds
from fastdata.errors import PrepError, StoreError, lacking
from fastdata.prepare.plan import Work, describe_difference
from fastdata.prepare.plan_files import difference, plan_folder, plan_path
from fastdata.prepare.replacing import is_settled
from fastdata.sources.urls import AnyPath
from fastdata.store.files import LOCK, MANIFEST, NEXT, WORK, clear, has_foreign, is_store, own_files
from fastdata.store.format import read_manifest

__all__ = ["Busy", "claimed", "clear_all", "clear_work", "is_finished", "is_stored", "refuse_store", "writing"]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none, such as Lustre without "flock"


class Busy(PrepError):
    """Another process works in the folder."""


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
    """Make the folder and lock it. The lock ends with the process.

    Args:
        share: let others share the lock: tasks, which publish whole files of the same bytes. Only who is alone may remove files.

    Raises:
        Busy: another process has the lock.
        PrepError: the folder is not ours.
    """
    if out.exists() and not (out.is_dir() and _ours(out)):
        raise PrepError(f"OUT {out} exists and is not a store; choose another name, or remove it yourself")
    lock = out / WORK / LOCK
    descriptor = _locked(lock, fcntl.LOCK_SH if share else fcntl.LOCK_EX)
    if descriptor is None:
        raise Busy(f"another fastdata-prep is making {out} right now")
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


def refuse_store(source: AnyPath) -> None:
    """Raise PrepError if SOURCE is a store."""
    if is_store(source):
        raise PrepError(
            f"SOURCE {source} is a store already: fastdata info {source} shows what it holds. To make another store, give the "
            f"original SOURCE, or write the samples as files: fastdata export {source} DIR"
        )


def clear_all(work: Work) -> None:
    """Remove all that prep has made of a store. One that it would replace stays."""
    if work.remote is not None:
        work.remote.clear()
    clear(work.out)


def clear_work(work: Work) -> None:
    """Remove what only an unfinished store needs."""
    if work.remote is not None:
        work.remote.clear_work()
    shutil.rmtree(work.store / WORK, ignore_errors=True)


def is_stored(work: Work) -> bool:
    """Return whether the store of this plan is finished, and if it is to replace another one, perhaps not in its place yet."""
    if work.remote is not None and not work.remote.find_manifest():
        return False
    for folder in [work.out] if work.out.exists() else [work.store / NEXT, work.store]:
        with suppress(StoreError):
            return read_manifest(folder).fingerprint == work.plan.fingerprint
    return False


def is_finished(work: Work, overwrite: bool) -> bool:
    """Return whether the store of this plan is finished. Clear its folder if `overwrite` is set and it cannot be resumed.

    Raises:
        PrepError: the folder or the URL belongs to another plan, or was begun on another machine, and `overwrite` is not set.
    """
    out, plan, changed = work.out, work.plan, ""
    if overwrite and not _is_resumable(work):
        clear_all(work)
    if work.replaces is not None:
        return False
    if (out / MANIFEST).exists():
        old = read_manifest(out)
        if old.fingerprint == plan.fingerprint:
            clear_work(work)  # a run that is killed at its very end leaves it
            return True
        new = {"options": plan.recorded_options(), "libraries": plan.libraries, "columns": plan.columns}
        changed = describe_difference(structs.asdict(old), new, work.kind, kinds.find(old.kind))
    elif plan_path(out).exists():
        changed = difference(work)
    if changed:
        raise PrepError(
            f"{work.place} was made, or begun, with other options or inputs:\n{changed}\n"
            f"Give the same options and inputs, {'another OUT, or --overwrite' if work.remote is None else 'or another OUT'}."
        )
    return False


def _is_resumable(work: Work) -> bool:
    """Return whether there is an unfinished run of this plan: a command with --overwrite that was interrupted continues."""
    try:
        begun = plan_path(work.out).exists() and not difference(work)
        return begun and (work.replaces is not None or not (work.out / MANIFEST).exists())
    except PrepError:
        return False
