"""Records that are compared with their checksums."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import FormatError
from fastdata.store.place import Records, remedy

__all__ = ["CheckedRecords"]

Array = np.ndarray[Any, np.dtype[Any]]


class CheckedRecords:
    """Records, each of which is compared with its checksum when this process first reads it.

    Args:
        records: what to read.
        sums: the xxh3-64 of each.
        place: of the store, for messages.
    """

    def __init__(self, records: Records, sums: Any, place: str | os.PathLike[str]) -> None:
        self._records = records
        self._sums = sums
        self._place = place
        self._seen = bytearray(len(records))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record: decode or copy them at once.

        Raises:
            FormatError: they are not what was written.
        """
        record = self._records.get(index)
        if not self._seen[index]:
            if xxhash.xxh3_64_intdigest(record) != int(self._sums[index]):
                raise FormatError(
                    f"sample {index} of {self._place} is not what was written: its checksum differs; "
                    f"{remedy(self._records, index, self._place)}"
                )
            self._seen[index] = 1
        return record

    def expect(self, indices: Array) -> None:
        """Prepare for reading these records."""
        self._records.expect(indices)

    def lengths(self) -> Array:
        """Return the bytes of each record, int64 [n]."""
        return self._records.lengths()

    def copy_of(self, index: int) -> Path | None:
        return self._records.copy_of(index)
