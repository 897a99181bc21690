"""Choosing samples: indices, subsets and splits of every dataset, with the checks of their arguments."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from fastdata.data.random import ROW_BITS, ROW_MASK, SPLIT_EPOCH, occurrences, uniforms
from fastdata.types import Array


def checked(index: Any, count: int) -> int:
    """Return an index of a dataset of `count` samples, counted from the front.

    Raises:
        TypeError: the index is not a whole number.
        IndexError: the dataset has no such sample.
    """
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(
            f"a dataset takes one whole number in [ ], found {index!r:.60}: use dataset.subset(...) for several samples, "
            "[dataset[k] for k in ...] for a list, and a Loader for batches"
        ) from None
    if not -count <= number < count:
        raise IndexError(f"the index is {number}, but the dataset's length is {count}")
    return number % count


def positions(indices: Any, count: int) -> Array:
    """Return the argument of `subset` as positions in a dataset of `count` samples, int64."""
    chosen = np.asarray(indices)
    if chosen.dtype == bool and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise TypeError(f"subset takes a list of indices, or a mask of booleans [{count}]; got {chosen.dtype} {chosen.shape}")
    if chosen.size and (chosen.min() < -count or chosen.max() >= count):
        raise IndexError(f"subset: indices go from {chosen.min()} to {chosen.max()}, but the dataset's length is {count}")
    return chosen.astype(np.int64) % max(count, 1)


def disambiguate(keys: Array) -> Array:
    """Make the keys of samples unique: the high bits number the repetitions of a row."""
    if len(np.unique(keys)) == len(keys):
        return keys
    rows = keys & ROW_MASK
    return rows | occurrences(rows) << ROW_BITS


def check_split(fraction: Any, seed: Any) -> None:
    """Raise a TypeError or a ValueError for a wrong argument of `split`."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, but must lie between 0 and 1: 0.8 puts 80 % of the samples into the first part")
    if not 0 <= operator.index(seed) < 1 << 64:
        raise ValueError(f"seed is {seed}, but must be from 0 to 2^64 - 1")


def part_of(fraction: float, seed: int, keys: Array, groups: Array | None) -> Array:
    """Return which samples go to the first part of a split, bool. groups: the same fraction of each is taken, rounded.

    Raises:
        ValueError: a part would be empty.
    """
    lot = uniforms(seed, SPLIT_EPOCH, keys, 1)[0]
    first = np.zeros(len(keys), bool)
    groups = np.zeros(len(keys)) if groups is None else groups
    order = np.argsort(lot, kind="stable")
    order = order[np.argsort(groups[order], kind="stable")]  # by group, then by lot
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    for start, count in zip(starts, counts, strict=True):
        first[order[start : start + round(fraction * count)]] = True
    if first.all() or not first.any():
        raise ValueError(f"fraction {fraction} leaves one part empty (group sizes: {', '.join(map(str, counts[:5]))}): change it")
    return first
