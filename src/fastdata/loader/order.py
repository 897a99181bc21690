"""The order of an epoch, and each rank's part of it. Any position of any epoch is computed directly.

A shuffled epoch is a pseudorandom permutation of 0 .. n-1, computed and never stored: a Feistel network over the
next power of two, applied again to results outside the range (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", 2002). So a resume in the middle of ten million samples costs as much as one batch. `tests/reference.py` defines
this order, and lanes, in plain Python.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.data.random import philox
from fastdata.types import Array

ROUNDS = 12
MIN_FEISTEL_BITS = 8  # with fewer bits the rounds have too few functions to choose from
ORDER_STREAM = 0xFFFFFFFF  # a counter word that separates these keys from the samples' random numbers
LANES = (8, 16, 24, 48, 96, 192, 384, 960)  # divisible by many numbers of ranks
MIN_SHARDS_PER_LANE = 8  # for each lane
MIN_SHARD_BITS = 4  # in a small shard, fewer bits would leave too few permutations, more would cost time
CHUNK = 1 << 22  # samples whose shards are looked up at once
KEPT = 2  # epochs that are laid out at a time: the current one and the next


def permute(positions: Array, n: Any, bits: Any, keys: Array) -> Array:
    """Return the image of each position under a permutation of 0 .. n-1, int64.

    Args:
        positions: int64 [k].
        n, bits: the size, and the bits of the network (at least 2, and enough for n - 1): one number, or int64 [k], one each.
        keys: uint32 [ROUNDS], or one column per position, uint32 [ROUNDS, k].
    """
    each = keys.ndim > 1
    n = np.asarray(n, np.uint64)
    out = _feistel(np.asarray(positions, np.uint64), bits, keys)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _feistel(out[outside], *((bits[outside], keys[:, outside]) if each else (bits, keys)))
        outside = outside[out[outside] >= (n[outside] if each else n)]
    return out.astype(np.int64)


def _feistel(x: Array, bits: Any, keys: Array) -> Array:
    """Map numbers of `bits` bits one to one. Halves may differ by 1 in width; an even number of rounds restores their places.

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

    def at(self, epoch: int, positions: Array) -> Array:
        """Return the samples at these positions of an epoch, int64."""
        if not self.shuffle:
            return np.asarray(positions, np.int64)
        bits = max(MIN_FEISTEL_BITS, (self.n - 1).bit_length())
        return permute(positions, self.n, bits, order_keys(self.seed, epoch))


def number_of_lanes(shards: int) -> int:
    """Return the number of lanes for this many shards: the largest of LANES that leaves each lane 8 shards, or else 8."""
    return max(lanes for lanes in LANES if lanes * MIN_SHARDS_PER_LANE <= max(shards, LANES[0] * MIN_SHARDS_PER_LANE))


class LaneOrder:
    """An order in which few shards are in use at a time; docs/loader.md says how well it mixes.

    The shards of an epoch are laid end to end in a random order. This row of n samples is cut into L lanes of equal length, and
    positions are dealt to them in turn: position p is step p // L of lane p % L. A lane reads its shards one after another, and the
    samples of each in a random order.

    Args:
        counts: the number of samples in each shard, int64 [shards].
        seed: 0 to 2^64 - 1.
        lanes: the number of lanes. Default: `number_of_lanes` of the shards that have samples.
        samples: the dataset's indices in the order of their shards, int64 [n], or None if the indices already are.
    """

    def __init__(self, counts: Array, seed: int, lanes: int | None = None, samples: Array | None = None) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.n = int(self.counts.sum())
        self.seed = seed
        self.lanes = min(number_of_lanes(int(np.count_nonzero(counts))), self.n) if lanes is None else lanes
        self._samples = samples
        self._firsts = np.cumsum(self.counts) - self.counts
        self._bits = np.maximum(np.frexp(self.counts - 1)[1], MIN_SHARD_BITS).astype(np.int64)  # at least those of counts - 1
        self._layouts: dict[int, tuple[Array, Array, Array]] = {}

    @classmethod
    def of(cls, dataset: Any, seed: int) -> LaneOrder:
        """Return the order of a dataset that says in which shard each sample lies. The lanes depend on the dataset alone.

        Raises:
            ValueError: the dataset has no shards, or draws its samples from all of them.
        """
        if getattr(dataset, "any_order", False) or not hasattr(dataset, "shards_of"):
            raise ValueError(
                f"order is 'interleaved', which follows the shards of a store, but a {type(dataset).__name__} has no shards, or "
                "draws each row from all shards (mode='random'): leave out order"
            )
        n = len(dataset)
        parts = [dataset.shards_of(np.arange(k, min(k + CHUNK, n))).astype(np.int32) for k in range(0, n, CHUNK)]
        shards = np.concatenate([np.empty(0, np.int32), *parts])
        in_order = (shards[1:] >= shards[:-1]).all()
        return cls(np.bincount(shards), seed, samples=None if in_order else np.argsort(shards, kind="stable"))

    @property
    def state(self) -> dict[str, Any]:
        """The state of the order, besides the seed: the number of lanes, and a checksum of the shards' counts of samples."""
        return {"lanes": self.lanes, "shards": f"{zlib.crc32(self.counts.astype('<i8').tobytes()):08x}"}

    def at(self, epoch: int, positions: Array) -> Array:
        """Return the samples at these positions of an epoch, int64."""
        shards, starts, keys = self._layout(epoch)
        step, lane = np.divmod(np.asarray(positions, np.int64), self.lanes)
        length, longer = divmod(self.n, self.lanes)  # the first `longer` lanes are longer by one
        row = lane * length + np.minimum(lane, longer) + step
        which = np.searchsorted(starts, row, "right") - 1
        shard = shards[which]
        inside = permute(row - starts[which], self.counts[shard], self._bits[shard], keys[:, shard])
        found: Array = self._firsts[shard] + inside
        return found if self._samples is None else self._samples[found]

    def _layout(self, epoch: int) -> tuple[Array, Array, Array]:
        """Return an epoch's order of the shards, where each begins in it, and the keys of each shard."""
        layouts = self._layouts
        if epoch not in layouts:
            count = len(self.counts)
            shards = EpochOrder(count, self.seed, shuffle=True).at(epoch, np.arange(count))
            lengths = self.counts[shards]
            while len(layouts) >= KEPT:
                del layouts[next(iter(layouts))]
            keys = order_keys(self.seed, epoch, 1 + np.arange(count))
            layouts[epoch] = shards, np.cumsum(lengths) - lengths, keys
        return layouts[epoch]


@dataclass(frozen=True)
class RankShard:
    """A rank's part of a global batch of G: the positions [k G, (k + 1) G) of the epoch. Rank r of W takes every W-th of them.

    With `blocks` it takes n = G / W neighbours, from k G + r n on, so that rows gathered from all ranks are in order.

    All ranks get the same number of rows, so that collective operations match. Where W does not divide a batch, at the end of an
    epoch or everywhere, some ranks repeat its last sample; `valid` is the number of real rows.
    """

    rank: int
    world_size: int
    blocks: bool = False

    def positions(self, start: int, stop: int, batch: int) -> tuple[Array, int]:
        """Return this rank's positions in [start, stop) (whole batches, or a smaller one), and how many of each batch are real."""
        size = min(batch, stop - start)
        rows = -(-size // self.world_size)
        k = np.arange(rows)
        own = self.rank * rows + k if self.blocks else self.rank + self.world_size * k
        firsts = np.arange(start, stop, size)[:, None]
        return (firsts + np.minimum(own, size - 1)).reshape(-1), int((own < size).sum())
