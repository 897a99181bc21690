"""Read files of tokens: .bin, plain uint16 as nanoGPT writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.errors import CodecError
from fastdata.sources.urls import AnyPath

__all__ = ["document_lengths", "open_tokens"]

Array = np.ndarray[Any, np.dtype[Any]]

LOOKED_AT = 1 << 20  # numbers of a file
FEWEST, UPPER = 64, 16  # ids, and a bound on their upper halves: vocabularies have fewer than 2^20 ids


def open_tokens(path: AnyPath) -> Array:
    """Map a file of tokens.

    Raises:
        CodecError: if it does not hold uint16.
    """
    size = path.stat().st_size
    if size % 2:
        raise CodecError("its size is odd, so it is not uint16 tokens", "truncated")
    tokens = np.memmap(path, "<u2", "r") if size else np.zeros(0, "<u2")
    low, high = tokens[:LOOKED_AT:2], tokens[1:LOOKED_AT:2]
    if len(high) >= FEWEST and int(high.max()) < UPPER and int(low.max()) >= 1 << 12:
        raise CodecError("every second number is small, as in a file of uint32, but a .bin holds uint16", "wrong-dtype")
    return tokens


def document_lengths(tokens: Array, end: int | None) -> Array:
    """Return the number of tokens in each document: one ends with each end token; without any, there is one document."""
    ends = np.zeros(0, np.int64) if end is None else np.flatnonzero(tokens == end) + 1
    return np.diff(np.unique(np.concatenate([[0], ends, [len(tokens)]])))
