"""A place of a store that is not a folder with everything in it."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastdata.store.format import Manifest, Variant
    from fastdata.store.reader import RecordIndex, ShardReader

__all__ = ["Place"]


class Place(os.PathLike[str]):
    """Where a store is, if its shards are elsewhere: the path is that of a folder with all its other files."""

    @abstractmethod
    def require(self, manifest: Manifest, variant: Variant) -> None:
        """Raise a StoreError if there cannot be room for all shards of a variant at once."""

    @abstractmethod
    def check(self, variant: Variant, shard: int) -> None:
        """Read a shard, and raise a FastDataError if it is not what was written."""

    @abstractmethod
    def reader(self, variant: Variant, index: RecordIndex, *, check: bool) -> ShardReader:
        """Open the records of a variant. check: as for ShardReader."""
