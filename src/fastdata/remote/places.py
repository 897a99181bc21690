"""Where each record lies in a shard's LMDB file: one contiguous range of bytes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from fastdata.errors import FormatError

__all__ = ["record_places"]

Array = np.ndarray[Any, np.dtype[Any]]

MAPS = Path("/proc/self/maps")

_lock = threading.Lock()  # LMDB opens a file only once in a process


def record_places(path: str | os.PathLike[str], records: int) -> Array:
    """Return the start and the length of each record in a shard, uint64 [records, 2].

    Args:
        path: of the file, whose checksum must have been compared: LMDB may crash on damaged pages.
        records: how many there are.

    Raises:
        FormatError: the file has another number of records.
    """
    with _lock:
        env = lmdb.open(os.fsencode(path), subdir=False, readonly=True, create=False, lock=False, readahead=False, lib_version=0)
        try:
            with env.begin(buffers=True) as txn:
                views = [np.frombuffer(value, np.uint8) for value in txn.cursor().iternext(keys=False)]
                found = np.array([(view.ctypes.data, len(view)) for view in views], np.uint64).reshape(-1, 2)
                del views
        except lmdb.Error as error:
            raise FormatError(f"{path} is damaged: {error}") from error
        finally:
            base = _base(Path(os.path.realpath(path)))
            env.close()
    if len(found) != records:
        raise FormatError(f"{path} has {len(found)} records, the manifest says {records}")
    found[:, 0] -= np.uint64(base)
    return found


def _base(path: Path) -> int:
    """Return the address at which a file is mapped."""
    for line in MAPS.read_text(errors="surrogateescape").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5] == os.fspath(path) and int(words[2], 16) == 0:
            return int(words[0].split("-")[0], 16)
    raise FormatError(f"{path} is not mapped")
