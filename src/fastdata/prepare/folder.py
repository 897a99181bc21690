"""The folder of a store while it is made: its lock, which folders are ours, and replacing a store.

A store that replaces another one is made in the old store's work folder. When it is finished, its folder is moved beside the files
of the old store. Then the old manifest is removed: from this moment on, readers get the new store. Finally, the other old files are
removed, and the new files are linked to their places, the manifest last. So the folder holds a whole store at any moment, and ends
as if there had never been another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastdata.errors import PrepError, StoreError, lacking
from fastdata.prepare.plan import plan_folder
from fastdata.store.files import LOCK, MANIFEST, NEXT, WORK, clear, is_store, link, own_files, sync

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none, such as Lustre without "flock"


@contextmanager
def claimed(out: Path, *, share: bool = False) -> Iterator[None]:
    """Make the folder and lock it. At the end, remove what only an unfinished store needs, if the store is finished.

    share: tasks may hold the lock together, since their files are equal.

    Errors of the disk become a StoreError that says how to go on.
    """
    try:
        if out.exists() and not (out.is_dir() and _is_ours(out)):
            raise PrepError(f"OUT {out} exists and is not a store; choose another name, or remove it yourself")
        lock = out / WORK / LOCK
        descriptor = _locked(lock, fcntl.LOCK_SH if share else fcntl.LOCK_EX)
        if descriptor is None:
            raise PrepError(f"another fastdata-prep is making {out} right now; wait until it ends")
        try:
            yield
        finally:
            with suppress(OSError):
                if is_store(out) and is_settled(out) and plan_folder(out) == out:  # it is finished, and nothing is to replace it
                    shutil.rmtree(lock.parent, ignore_errors=True)
            os.close(descriptor)
    except OSError as error:
        why = lacking(error) or error
        raise StoreError(f"cannot write {out}: {why}\nWhat is finished is kept; run the same command again.") from error


def _locked(lock: Path, kind: int) -> int | None:
    """Return a descriptor of a locked file, or None if another process has the lock.

    The file is opened for writing, because NFS can lock nothing else.
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


def _is_ours(out: Path) -> bool:
    """Return whether a folder is empty, a store, or a store that prep has begun."""
    found = [path for path in (*out.iterdir(), *(out / WORK).glob("*")) if path != out / WORK]
    return not found or out / WORK / LOCK in found or is_store(out)


def is_settled(root: Path) -> bool:
    """Return False while a store is being replaced, or if that was interrupted."""
    return not (root / NEXT / MANIFEST).exists()


def settle(root: Path) -> None:
    """Finish a replacement, which a killed process may have begun: the new store becomes the only one in the folder."""
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
