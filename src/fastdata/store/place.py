"""A place of a store that is not a folder with everything in it."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from fastdata.store.format import Manifest, Variant

__all__ = ["Place", "Records", "remedy"]


Array = np.ndarray[Any, np.dtype[Any]]


class Records(Protocol):
    """The records of one variant."""

    def __len__(self) -> int: ...

    def get(self, index: int) -> memoryview:
        """Return the bytes of a record: decode or copy them at once."""

    def expect(self, indices: Array) -> None:
        """Prepare for reading these records."""

    def lengths(self) -> Array:
        """Return the bytes of each record, int64 [n]."""

    def copy_of(self, index: int) -> Path | None:
        """Return the file in a cache that a record was read from, which may be removed; None: it was read from the store itself."""


def remedy(records: Records, index: int, place: str | os.PathLike[str]) -> str:
    """Return what to do about a record that is not what was written, as the end of a message. place: of its store."""
    copy = records.copy_of(index)
    verify = f"run fastdata verify {place}"
    if copy is None:
        return verify
    return f"remove {copy}, a copy in the cache, to have it fetched again; if that does not help, {verify}"


class Place(os.PathLike[str]):
    """Where a store is, if its shards are elsewhere: the path is that of a folder with all its other files."""

    @abstractmethod
    def require(self, manifest: Manifest, variant: Variant) -> None:
        """Raise a StoreError if there cannot be room for all shards of a variant at once."""

    @abstractmethod
    def check(self, variant: Variant, shard: int) -> None:
        """Read a shard, and raise a FastDataError if it is not what was written."""

    @abstractmethod
    def reader(self, manifest: Manifest, variant: Variant) -> Records:
        """Open the records of a variant."""
