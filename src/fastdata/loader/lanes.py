"""The order by lanes: a shuffled epoch in which few shards are in use at a time. Any place of any epoch is computed directly.

The shards of an epoch are laid end to end in a random order. This row of n samples is cut into L lanes of equal length, and places
are dealt to them in turn: place p is step p // L of lane p % L. A lane reads its shards one after another, and the samples of
each in a random order. `tests/reference.py` defines the order exactly, in plain Python; docs/loader.md says how well it mixes.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from fastdata.loader.order import EpochOrder, order_keys, permute_each

__all__ = ["LaneOrder", "number_of_lanes"]

Array = np.ndarray[Any, np.dtype[Any]]

LANES = (8, 16, 24, 48, 96, 192, 384, 960)  # divisible by many numbers of ranks
LEAST_SHARDS = 8  # for each lane
LEAST_BITS = 4  # in a small shard, fewer bits would leave too few permutations, more would cost time
CHUNK = 1 << 22  # samples whose shards are looked up at once
KEPT = 2  # epochs that are laid out at a time: the current one and the next


def number_of_lanes(shards: int) -> int:
    """Return the number of lanes for so many shards: the largest that leaves each lane 8 shards, and at least 8 lanes."""
    return max(lanes for lanes in LANES if lanes * LEAST_SHARDS <= max(shards, LANES[0] * LEAST_SHARDS))


class _Layout(NamedTuple):
    """An epoch: the order of the shards, where each begins in it, and keys for each shard."""

    shards: Array
    starts: Array
    keys: Array


class LaneOrder:
    """The order of the samples of shards in each epoch, over all ranks.

    Args:
        counts: the number of samples in each shard, int64 [shards].
        seed: 0 to 2^64 - 1.
        lanes: the number of lanes; None: `number_of_lanes` of the shards that have samples.
        samples: the dataset's indices in the order of their shards, int64 [n]; None: they are in this order already.
    """

    def __init__(self, counts: Array, seed: int, lanes: int | None = None, samples: Array | None = None) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.n = int(self.counts.sum())
        self.seed = seed
        self.lanes = min(number_of_lanes(int(np.count_nonzero(counts))), self.n) if lanes is None else lanes
        self._samples = samples
        self._firsts = np.cumsum(self.counts) - self.counts
        bits = np.frexp(self.counts - 1)[1]  # of counts - 1
        self._bits = np.maximum(bits, LEAST_BITS).astype(np.int64)
        self._layouts: dict[int, _Layout] = {}

    @classmethod
    def of(cls, dataset: Any, seed: int) -> LaneOrder:
        """Return the order of a dataset that says in which shard each sample lies. It depends on the dataset alone.

        Raises:
            ValueError: the dataset has no shards, or draws its samples from all of them.
        """
        counts, samples = _by_shard(dataset)
        return cls(counts, seed, samples=samples)

    @property
    def state(self) -> dict[str, Any]:
        """What determines the order besides the seed: the number of lanes, and a checksum of the shards' counts of samples."""
        return {"lanes": self.lanes, "shards": f"{zlib.crc32(self.counts.astype('<i8').tobytes()):08x}"}

    def at(self, epoch: int, places: Array) -> Array:
        """Return the samples at these places of an epoch, int64."""
        layout = self._layout(epoch)
        shards, offsets = self._locate(layout, places)
        inside = permute_each(offsets, self.counts[shards], self._bits[shards], layout.keys[:, shards])
        found: Array = self._firsts[shards] + inside
        return found if self._samples is None else self._samples[found]

    def _locate(self, layout: _Layout, places: Array) -> tuple[Array, Array]:
        """Return the shard of each place, and the number of the sample among those that are read of this shard."""
        step, lane = np.divmod(np.asarray(places, np.int64), self.lanes)
        length, longer = divmod(self.n, self.lanes)  # the first `longer` lanes are longer by one
        row = lane * length + np.minimum(lane, longer) + step
        slot = np.searchsorted(layout.starts, row, "right") - 1
        return layout.shards[slot], row - layout.starts[slot]

    def _layout(self, epoch: int) -> _Layout:
        layouts = self._layouts
        if epoch not in layouts:
            count = len(self.counts)
            shards = EpochOrder(count, self.seed, shuffle=True).at(epoch, np.arange(count))
            lengths = self.counts[shards]
            while len(layouts) >= KEPT:
                del layouts[next(iter(layouts))]
            keys = order_keys(self.seed, epoch, 1 + np.arange(count))
            layouts[epoch] = _Layout(shards, np.cumsum(lengths) - lengths, keys)
        return layouts[epoch]


def _by_shard(dataset: Any) -> tuple[Array, Array | None]:
    """Return how many samples of a dataset lie in each shard, and its indices sorted by shard; None: they are sorted already."""
    if getattr(dataset, "any_order", False):
        raise ValueError(
            "order is 'interleaved', but each row of this dataset begins anywhere in the store (mode='random'): use another mode, "
            "or leave order out"
        )
    if not hasattr(dataset, "shards_of"):
        raise ValueError(
            f"order is 'interleaved', which follows the shards of a store, but a {type(dataset).__name__} has none: leave order out"
        )
    n = len(dataset)
    parts = [dataset.shards_of(np.arange(k, min(k + CHUNK, n))).astype(np.int32) for k in range(0, n, CHUNK)]
    shards = np.concatenate([np.empty(0, np.int32), *parts])
    counts = np.bincount(shards)
    return counts, None if (shards[1:] >= shards[:-1]).all() else np.argsort(shards, kind="stable")
