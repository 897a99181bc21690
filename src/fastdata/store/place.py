"""Stores whose shards are elsewhere, and what a dataset reads of them."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fastdata.store.format import Manifest, Variant
    from fastdata.store.reader import RecordIndex, ShardReader

__all__ = ["Place", "Use"]

Array = np.ndarray[Any, np.dtype[Any]]


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


class Use(NamedTuple):
    """The shards of some samples.

    Attributes:
        place: of the store.
        variant: of which shards are read.
        samples: which of the samples lie in this store, as indices, int64 [n].
        shards: the shard of each of these, int64 [n].
    """

    place: Place
    variant: str
    samples: Array
    shards: Array
