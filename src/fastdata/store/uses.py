"""What a dataset reads of a remote store."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastdata.store.place import Place

__all__ = ["Use"]

Array = np.ndarray[Any, np.dtype[Any]]


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
