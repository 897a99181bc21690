"""Choosing samples: indices, subsets and splits of every dataset."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from fastdata.data.random import ROW_BITS, ROW_MASK, SPLIT_EPOCH, occurrences, uniforms

__all__ = ["checked", "disambiguate", "part_of", "places"]

Array = np.ndarray[Any, np.dtype[Any]]


def checked(index: Any, count: int) -> int:
    """Return an index of a dataset of `count` samples, counted from the front.

    Raises:
        TypeError: it is not a whole number.
        IndexError: the dataset has no such sample.
    """
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(
            f"a dataset takes one whole number in [ ], found {index!r:.60}: use dataset.subset(...) for a dataset of several, "
            "[dataset[k] for k in ...] for a list, and a Loader for batches"
        ) from None
    if not -count <= number < count:
        raise IndexError(f"index {number}, but the dataset has {count} samples")
    return number % count


def places(indices: Any, count: int) -> Array:
    """Return the argument of `subset` as places in a dataset of `count` samples, int64."""
    chosen = np.asarray(indices)
    if chosen.dtype == bool and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise TypeError(f"subset takes a list of indices, or a mask of {count} booleans; got {chosen.dtype} {chosen.shape}")
    if chosen.size and (chosen.min() < -count or chosen.max() >= count):
        raise IndexError(f"subset: indices from {chosen.min()} to {chosen.max()}, but the dataset has {count} samples")
    return chosen.astype(np.int64) % max(count, 1)


def disambiguate(keys: Array) -> Array:
    """Make the keys of samples unique: the bits above the row number its repetitions."""
    if len(np.unique(keys)) == len(keys):
        return keys
    rows = keys & ROW_MASK
    return rows | occurrences(rows) << ROW_BITS


def part_of(fraction: float, seed: int, keys: Array, groups: Array | None) -> Array:
    """Return which samples go to the first part of a split, bool. groups: take the same fraction of each, rounded."""
    lot = uniforms(seed, SPLIT_EPOCH, keys, 1)[0]
    first = np.zeros(len(keys), bool)
    order = np.argsort(lot, kind="stable")
    if groups is None:
        first[order[: round(fraction * len(keys))]] = True
        return first
    order = order[np.argsort(groups[order], kind="stable")]  # by group, then by lot
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    for start, count in zip(starts, counts, strict=True):
        first[order[start : start + round(fraction * count)]] = True
    return first
