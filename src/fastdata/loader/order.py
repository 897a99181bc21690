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

__all__ = ["EpochOrder", "RankShard", "order_keys", "permute", "permute_each"]

Array = np.ndarray[Any, np.dtype[Any]]

ROUNDS = 12
FEW_NUMBERS = 4  # times the places that are asked for
LEAST_BITS = 8  # with fewer bits the rounds have too few functions to choose from
ORDER_STREAM = 0xFFFFFFFF  # a counter word that separates these keys from the samples' random numbers


def permute(places: Array, n: int, keys: Array) -> Array:
    """Return the images of `places` under a permutation of 0 .. n-1, int64. `keys` are uint32 [ROUNDS]."""
    bits = max(LEAST_BITS, (n - 1).bit_length())
    places = np.asarray(places, np.uint64)
    few = 1 << bits <= FEW_NUMBERS * len(places)  # so few that computing the whole network once costs less than the last steps
    network = _feistel(np.arange(1 << bits, dtype=np.uint64), bits, keys) if few else None
    out = _feistel(places, bits, keys) if network is None else network[places]
    while (outside := np.flatnonzero(out >= n)).size:
        out[outside] = _feistel(out[outside], bits, keys) if network is None else network[out[outside]]
    return out.astype(np.int64)


def permute_each(places: Array, n: Array, bits: Array, keys: Array) -> Array:
    """Return the image of each place under a permutation of 0 .. n-1 of its own, int64.

    Args:
        places, n: int64 [k].
        bits: of each network, int64 [k]: at least 2, and enough for n - 1.
        keys: uint32 [ROUNDS, k].
    """
    out = _feistel(np.asarray(places, np.uint64), bits, keys)
    n = n.astype(np.uint64)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _feistel(out[outside], bits[outside], keys[:, outside])
        outside = outside[out[outside] >= n[outside]]
    return out.astype(np.int64)


def _feistel(x: Array, bits: Any, keys: Array) -> Array:
    """Map numbers of `bits` bits one to one. The halves may differ by a bit; an even number of rounds restores their places.

    bits: an int, or one for each number; then there is a column of keys for each, too.
    """
    low = bits // 2
    shift = np.asarray(low, np.uint64)
    masks = [((np.uint64(1) << np.asarray(width, np.uint64)) - np.uint64(1)).astype(np.uint32) for width in (bits - low, low)]
    left = (x >> shift).astype(np.uint32)
    right = x.astype(np.uint32) & masks[1]
    for k, key in enumerate(keys):
        left, right = right, left ^ (_mix(right ^ key) & masks[k % 2])
    return (left.astype(np.uint64) << shift) | right


def _mix(h: Array) -> Array:
    """Apply MurmurHash3's 32-bit finalizer (Appleby, public domain): each input bit flips each output bit half of the time."""
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def order_keys(seed: int, epoch: int, streams: Any = 0) -> Array:
    """Return the keys of the permutations of an epoch: uint32 [ROUNDS], with a further axis for an array of `streams`."""
    blocks = np.arange(-(-ROUNDS // 4)).reshape(-1, *np.ones(np.ndim(streams), int))
    words = philox((blocks, np.asarray(streams, np.uint64), ORDER_STREAM, seed >> 32), (seed & 0xFFFFFFFF, epoch))
    return np.stack(words, axis=1).reshape(-1, *np.shape(streams))[:ROUNDS].astype(np.uint32)


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
        return permute(places, self.n, order_keys(self.seed, epoch))


@dataclass(frozen=True)
class RankShard:
    """A rank's part of a global batch, which is the places [k G, (k + 1) G) of the epoch. Rank r takes every W-th of them.

    With `blocks` it takes n = G / W neighbours, from k G + r n on, so that rows gathered from all ranks are in order. In an order
    by L lanes, unless W divides both L and G, the places of a batch are sorted by lane, and each rank takes neighbours of these:
    it then reads L / W lanes and a few more, for any number of ranks.

    All ranks get the same number of rows, so that collective operations match. Where W does not divide a batch, at the end of an
    epoch or everywhere, some ranks repeat samples; `valid` is the number of real rows.
    """

    rank: int
    world_size: int
    blocks: bool = False

    def places(self, start: int, stop: int, batch: int, lanes: int) -> tuple[Array, int]:
        """Return this rank's places in [start, stop), which is whole global batches or a smaller one, and the real ones of each.

        lanes: the number of lanes of the order; 0: it has none.
        """
        size = min(batch, stop - start)
        rows = -(-size // self.world_size)
        firsts = np.arange(start, stop, size)[:, None]
        k = np.arange(rows)
        if lanes and not self.blocks and (lanes % self.world_size or batch % self.world_size):
            low, high = (rank * size // self.world_size for rank in (self.rank, self.rank + 1))
            own = low + np.minimum(k, max(high - low - 1, 0))
            return (firsts + by_lane(own, firsts, size, lanes)).reshape(-1), high - low
        own = self.rank * rows + k if self.blocks else self.rank + self.world_size * k
        return (firsts + np.minimum(own, size - 1)).reshape(-1), int((own < size).sum())


def by_lane(numbers: Array, first: Array, size: int, lanes: int) -> Array:
    """Sort the places [first, first + size) by lane, p % lanes, then by place. Return the offsets of some of them from `first`.

    Each lane has `size // lanes` of these places, and those of `size % lanes` lanes, from that of `first` on, have one more.

    Args:
        numbers: which of the sorted places, int64, of any shape that goes with `first`.
    """
    few, more = divmod(size, lanes)
    begin = first % lanes  # the first lane that has one more
    around = np.maximum(begin + more - lanes, 0)  # how many of the lanes with one more begin again at lane 0
    # Three runs of lanes: before `ends[0]`, before `ends[1]`, and after it. The outer two have the same number of places a lane.
    ends = np.where(around > 0, around, begin), np.where(around > 0, begin, begin + more)
    outer, inner = np.where(around > 0, few + 1, few), np.where(around > 0, few, few + 1)
    second = ends[0] * outer
    third = second + (ends[1] - ends[0]) * inner
    in_second, in_third = numbers >= second, numbers >= third
    inside = numbers - np.where(in_third, third, np.where(in_second, second, 0))
    count = np.where(in_second & ~in_third, inner, outer)
    lane = np.where(in_third, ends[1], np.where(in_second, ends[0], 0)) + inside // count
    offsets: Array = (lane - begin) % lanes + inside % count * lanes
    return offsets
