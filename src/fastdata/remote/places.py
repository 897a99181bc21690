"""Where each record lies in a shard's LMDB file: one contiguous range of bytes."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from fastdata.errors import FormatError
from fastdata.store.tree import BROKEN, Tree

__all__ = ["record_places"]

Array = np.ndarray[Any, np.dtype[Any]]


def record_places(path: str | os.PathLike[str], records: int, size: int = 0) -> Array:
    """Return the start and the length of each record in a shard, uint64 [records, 2].

    Args:
        path: of the file.
        records: how many there are.
        size: of the shard, which may be followed by something else; 0: it is the whole file.

    Raises:
        FormatError: the file is damaged, or has another number of records.
    """
    try:
        with open(path, "rb") as file:
            tree = Tree(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
        places = tree.places()
    except BROKEN as error:
        raise FormatError(f"{path} is damaged: {error}") from None
    if len(places) != records:
        raise FormatError(f"{path} has {len(places)} records, the manifest says {records}")
    return places.astype(np.uint64)
