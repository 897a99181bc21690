"""Tokens of a shard, joined into records."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.prepare.worker import Writers

__all__ = ["Packer"]

Array = np.ndarray[Any, np.dtype[Any]]

RECORD_BYTES = (256 << 12) - 16  # a value that fills whole pages behind LMDB's own 16 bytes


class Packer:
    """Joins the tokens of a shard into records of equal size."""

    def __init__(self, writers: Writers, dtype: str, end: int | None) -> None:
        self._writers, self._end = writers, end
        self._record = np.empty(RECORD_BYTES // np.dtype(dtype).itemsize, dtype)
        self._used = 0
        self.largest = self.total = self.records = 0

    def add(self, ids: Array) -> int:
        """Append a document. Returns its tokens, the end included."""
        end = self._end
        for part in (ids,) if end is None else (ids, np.array([end])):
            self.append(part)
        return len(ids) + (end is not None)

    def append(self, ids: Array) -> None:
        """Append tokens as they are."""
        self.largest = max(self.largest, int(ids.max(initial=0)))
        self.total += len(ids)
        while len(ids):
            taken = min(len(ids), len(self._record) - self._used)
            self._record[self._used : self._used + taken] = ids[:taken]
            self._used += taken
            ids = ids[taken:]
            if self._used == len(self._record):
                self.flush()

    def flush(self) -> None:
        """Write what is there; at the end of a shard a record is shorter."""
        if self._used:
            self._writers.append([self._record[: self._used].tobytes()])
            self._used, self.records = 0, self.records + 1
