"""A folder for temporary files on a disk of this machine, which does not outlive its process for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastdata.errors import StoreError
from fastdata.sources.options import StrPath

__all__ = ["temporary_folder"]

SCRATCH = "fastdata-out-"
LOCK = "lock"


@contextmanager
def temporary_folder(scratch: StrPath | None) -> Iterator[Path]:
    """Make a folder, and remove it at the end; also those of processes that were killed, whose locks are free."""
    parent = Path(scratch or tempfile.gettempdir()).absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{SCRATCH}*/{LOCK}"):
            _remove_unlocked(left)
        folder, descriptor = None, -1
        while folder is None:
            folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not (folder / LOCK).exists():  # another process took it for one that is left
                os.close(descriptor)
                folder = None
    except OSError as error:
        raise StoreError(f"--scratch {parent} cannot be used: {error.strerror}; give a folder on a disk of this machine") from None
    try:
        yield folder / "store"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_unlocked(lock: Path) -> None:
    with suppress(OSError):  # it is in use, of another user, or gone
        descriptor = os.open(lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
        finally:
            os.close(descriptor)
