"""Counter-based random numbers: a value depends on (seed, epoch, sample, draw) alone.

Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); constants and known answers from
their Random123 library. Vectorised over numpy arrays: a generator object for each sample would cost many times as much.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastdata.types import Array

ROW_BITS, REPEAT_BITS = 40, 52
ROW_MASK = (1 << ROW_BITS) - 1
ROUNDS = 10
MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
WEYL = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
SPLIT_EPOCH = 0xFFFFFFFF  # no real epoch, so that a split is independent of the flips and crops of the same seed
LOOSE_STREAM = 0xFFFFFFFE  # separates the seeds of users' code from our random numbers


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Compute Philox4x32-10: four 32-bit words from four counter words and two key words; all uint64 with values below 2^32.

    The words are stored as two pairs, so that a round is a few calls of numpy: for a batch the calls cost more than the arithmetic.
    """
    shape = np.broadcast(*counter).shape
    even, odd = np.empty((2, *shape), np.uint64), np.empty((2, *shape), np.uint64)
    even[0], odd[0], even[1], odd[1] = counter
    even, odd = even.reshape(2, -1), odd.reshape(2, -1)
    for round_key in _round_keys(*key):
        product = even * MULTIPLIERS
        even = (product >> SHIFT)[::-1]
        even ^= odd
        even ^= round_key
        product &= LOW
        odd = product[::-1]
    return even[0].reshape(shape), odd[0].reshape(shape), even[1].reshape(shape), odd[1].reshape(shape)


@functools.lru_cache(maxsize=16)
def _round_keys(k0: int, k1: int) -> Array:
    """Return the keys of all rounds, uint64 [10, 2, 1]."""
    keys = [[[(k + n * weyl) & 0xFFFFFFFF] for k, weyl in zip((k0, k1), WEYL, strict=True)] for n in range(ROUNDS)]
    return np.array(keys, np.uint64)


def occurrences(rows: Array) -> Array:
    """Return the number of equal elements before each element, int64."""
    order = np.argsort(rows, kind="stable")
    _, first, counts = np.unique(rows[order], return_index=True, return_counts=True)
    out = np.empty(len(rows), np.int64)
    out[order] = np.arange(len(rows)) - np.repeat(first, counts)
    return out


def repeated(keys: Array, repeats: Array | None) -> Array:
    """Add each sample's repetition in the epoch to its key, above 40 bits of row and 12 bits of repetition in a subset."""
    return keys if repeats is None else keys + (repeats << REPEAT_BITS)


def uniforms(seed: int, epoch: int, ids: Array, draws: int) -> Array:
    """Return uniform numbers in [0, 1) with 32 random bits each: float64 [draws, len(ids)]. Draw d does not depend on `draws`."""
    ids = np.asarray(ids).astype(np.uint64)
    blocks = np.arange(-(-draws // 4), dtype=np.uint64)[:, None]
    words = philox((ids & LOW, ids >> SHIFT, blocks, seed >> 32), (seed & 0xFFFFFFFF, epoch))
    return np.stack(words, axis=1).reshape(4 * len(blocks), len(ids))[:draws] * 2.0**-32


def seeds_for_user_code(seed: int, epoch: int, ids: Any, view: int = 0) -> list[int]:
    """Return a 64-bit seed for view number `view` of each sample, for users' code and its generators."""
    ids = np.asarray(ids).astype(np.uint64)
    words = philox((ids & LOW, ids >> SHIFT, LOOSE_STREAM - view, seed >> 32), (seed & 0xFFFFFFFF, epoch))
    return (words[0] << SHIFT | words[1]).tolist()  # type: ignore[no-any-return]


@contextmanager
def isolated_global_rngs() -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds random, numpy, and torch on the CPU, for users' code. Restore them after, except in a worker.

    torch.manual_seed is slower, and would reset the GPUs' generators, which the training uses.
    """
    # not in a worker, where nothing else uses them
    saved = None if get_worker_info() else (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002
    try:
        yield _reseed
    finally:
        if saved is not None:
            torch.set_rng_state(saved[0])
            random.setstate(saved[1])
            np.random.set_state(saved[2])  # noqa: NPY002


def _reseed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  users' code may use it
