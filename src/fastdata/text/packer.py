"""Join the tokens of a shard into records."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.prepare.worker import Writers
from fastdata.text.sections import RECORD_BYTES

__all__ = ["Packer"]

Array = np.ndarray[Any, np.dtype[Any]]


class Packer:
    """Joins the tokens of a shard into records of equal size."""

    def __init__(self, writers: Writers, dtype: str, end: int | None) -> None:
        self._writers = writers
        self._end = end
        self._record = np.empty(RECORD_BYTES // np.dtype(dtype).itemsize, dtype)
        self._used = 0
        self.largest = self.total = self.records = 0

    def add(self, ids: Array) -> int:
        """Append a document and its end token, and return how many tokens that is."""
        self.append(ids)
        if self._end is None:
            return len(ids)
        self.append(np.array([self._end]))
        return len(ids) + 1

    def append(self, ids: Array) -> None:
        """Append tokens without an end token."""
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
        """Write the pending tokens as a record; the last one of a shard is shorter."""
        if self._used:
            self._writers.append([self._record[: self._used].tobytes()])
            self._used = 0
            self.records += 1
