"""The order of an epoch, and each rank's part of it. Any place of any epoch is computed directly.

A shuffled epoch is a pseudorandom permutation of 0 .. n-1 that is computed place by place, never stored: a Feistel network over the
next power of two, applied again to results outside the range (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", 2002). So a resume in the middle of ten million samples costs as much as one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.data.random import philox

__all__ = ["EpochOrder", "Part", "permute"]

Array = np.ndarray[Any, np.dtype[Any]]

ROUNDS = 12
LEAST_BITS = 8  # with fewer bits the rounds have too few functions to choose from
ORDER_STREAM = 0xFFFFFFFF  # a counter word that separates these keys from the samples' random numbers


def permute(places: Array, n: int, keys: Array) -> Array:
    """Return the images of `places` under a permutation of 0 .. n-1, int64. `keys` are uint32 [ROUNDS]."""
    bits = max(LEAST_BITS, (n - 1).bit_length())
    out = _feistel(np.asarray(places, np.uint64), bits, keys)
    while (outside := np.flatnonzero(out >= n)).size:
        out[outside] = _feistel(out[outside], bits, keys)
    return out.astype(np.int64)


def _feistel(x: Array, bits: int, keys: Array) -> Array:
    """Map numbers of `bits` bits one to one. The halves may differ by a bit; an even number of rounds restores their places."""
    low = bits // 2
    left = (x >> np.uint64(low)).astype(np.uint32)
    right = (x & np.uint64((1 << low) - 1)).astype(np.uint32)
    masks = np.uint32((1 << (bits - low)) - 1), np.uint32((1 << low) - 1)
    for k, key in enumerate(keys):
        left, right = right, left ^ (_mix(right ^ key) & masks[k % 2])
    return (left.astype(np.uint64) << np.uint64(low)) | right


def _mix(h: Array) -> Array:
    """Apply MurmurHash3's 32-bit finalizer (Appleby, public domain): each input bit flips each output bit half of the time."""
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


@dataclass(frozen=True)
class EpochOrder:
    """The order of n samples in each epoch, over all ranks."""

    n: int
    seed: int
    shuffle: bool

    def at(self, epoch: int, places: Array) -> Array:
        """Return the samples at these places of an epoch, int64."""
        if not self.shuffle:
            return np.asarray(places, np.int64)
        words = philox((np.arange(-(-ROUNDS // 4)), 0, ORDER_STREAM, self.seed >> 32), (self.seed & 0xFFFFFFFF, epoch))
        return permute(places, self.n, np.stack(words, axis=1).reshape(-1)[:ROUNDS].astype(np.uint32))


@dataclass(frozen=True)
class Part:
    """A rank's part of a global batch. Global batch k takes places [k G, (k + 1) G) of the epoch, and rank r every W-th of these.
    With `blocks` it takes n = G / W neighbours, from k G + r n on, so that rows gathered from all ranks are in order.

    All ranks get the same number of rows, so that collective operations match: at the end of an epoch some ranks repeat samples;
    `valid` is the number of real rows.
    """

    rank: int
    world_size: int
    blocks: bool = False

    def places(self, start: int, stop: int, batch: int) -> tuple[Array, int]:
        """Return this rank's places in [start, stop), which is whole global batches or a smaller one, and how many are real."""
        rows = -(-(stop - start) // self.world_size)
        k = np.arange(rows)
        places = start + self.rank + self.world_size * k
        if self.blocks:
            block = min(rows, batch // self.world_size)
            places = start + k // block * batch + self.rank * block + k % block
        valid = int((places < stop).sum())
        return np.minimum(places, stop - 1), valid
