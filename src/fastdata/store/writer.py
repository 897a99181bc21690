"""Writes shards: LMDB files, and where their records lie in them."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash

from fastdata.errors import StoreError, lacking
from fastdata.store.files import FileSum, file_sum
from fastdata.store.reader import INDEX_ROW
from fastdata.types import Array

MAP_BYTES = 1 << 40  # address space, not disk. It is stored in the file, so it must never change
COMMIT_BYTES = 32 << 20  # held in memory by one transaction. It determines the bytes of the file, so it must never change


class ShardWriter:
    """Writes one shard to a file, which is complete after `finish`.

    The same records give the same bytes: they are appended in order, committed at fixed amounts, in a map of fixed size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        options: dict[str, Any] = {"subdir": False, "lock": False, "sync": False, "max_spare_txns": 0, "lib_version": 0}
        with self._explained():
            self._env = lmdb.open(os.fsencode(path), map_size=MAP_BYTES, **options)
        self._txn = self._env.begin(write=True)
        self._pending = 0
        self._sums: list[int] = []

    def append(self, record: bytes) -> None:
        """Add a record under the next number, as 8 bytes big-endian, so that keys sort as records do."""
        with self._explained():
            self._txn.put(len(self._sums).to_bytes(8, "big"), record, append=True)
            self._sums.append(xxhash.xxh3_64_intdigest(record))
            self._pending += len(record)
            if self._pending >= COMMIT_BYTES:
                self._txn.commit()
                self._txn = self._env.begin(write=True)
                self._pending = 0

    def finish(self) -> tuple[FileSum, Array]:
        """Commit the last records.

        Returns:
            The size and the checksum of the file, which is not flushed to disk, and a row of INDEX_ROW for each record.
        """
        with self._explained():
            self._txn.commit()
        index = self._index(self._env.stat()["psize"])
        self._env.close()
        return file_sum(self._path), index

    def _index(self, page_bytes: int) -> Array:
        """Return the rows of the index, from the addresses of the records in LMDB's map of the file.

        Any page tells where the map begins, since each begins with its page number.
        """
        rows = np.zeros(len(self._sums), INDEX_ROW)
        rows["xxh3"] = self._sums
        start = 0  # of the map
        with self._env.begin(buffers=True) as txn:
            for number, value in enumerate(txn.cursor().iternext(keys=False)):
                if not len(value):
                    continue  # an empty record lies nowhere
                address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
                if not start:
                    page = address & -page_bytes
                    start = page - int.from_bytes(ctypes.string_at(page, 8), sys.byteorder) * page_bytes
                rows[number]["offset"], rows[number]["length"] = address - start, len(value)
        return rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of LMDB, which reports a full disk as an input/output error, into a StoreError."""
        try:
            yield
        except lmdb.Error as error:
            folder, why = self._path.parent, lacking(error)
            if not folder.is_dir():
                why = f"there is no folder {folder}: make it, or see what removed it"
            elif not why and shutil.disk_usage(folder).free < 1 << 20:
                why = os.strerror(errno.ENOSPC)
            raise StoreError(f"cannot write {self._path}: {why or error}") from error

    def abort(self) -> None:
        """Remove the file."""
        self._env.close()
        self._path.unlink(missing_ok=True)
