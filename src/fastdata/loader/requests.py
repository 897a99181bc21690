"""The endless list of batches that an engine draws from, ahead of the consumer."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from fastdata.data.dataset import SlotDataset
from fastdata.loader.fetch import Request, Size, sized
from fastdata.loader.order import EpochOrder, LaneOrder, RankShard
from fastdata.loader.samplers import UserSampler
from fastdata.loader.sampling import Sampling
from fastdata.loader.slots import Slots
from fastdata.remote.reader import ScheduleWriter
from fastdata.types import Array

AHEAD = 16_384  # samples whose order is computed at once, to spread numpy's cost per call over many batches
BATCHES_AHEAD = 256  # of a sampler, whose list is drawn at once


class Requests:
    """Requests of all epochs, without a gap: an epoch's first batches are made while the last ones of the epoch before are used.

    Args:
        sampling: what decides the batches: an order of the samples, or a sampler, and the sizes to read.
        shard: this rank's share.

    Attributes:
        slots: where each request takes a slot from, or None.
        compared: whether the ranks have been compared.
        generation: the number of restarts; it marks replies to requests from before the last restart.
    """

    def __init__(self, sampling: Sampling, shard: RankShard) -> None:
        dataset = sampling.dataset
        self.shard = shard
        self.counts = sampling.count(shard)
        self.order = sampling.lanes or EpochOrder(self.counts.num_samples, sampling.seed, sampling.shuffled)
        self.sizes = sampling.sizes
        self._sampling = sampling
        self._sampler = sampling.user_sampler
        self.slots: Slots | None = None
        self._schedule: ScheduleWriter | None = None
        if isinstance(dataset, SlotDataset) and dataset.remote:
            own = weakref.proxy(self)  # no cycle: the fetcher is to see at once that these requests are gone
            self._schedule = ScheduleWriter(
                lambda epoch, ids: sized(dataset, own._size(epoch)).uses(ids), lambda *at: own._chunk(*at)
            )
        self.compared = False
        self.generation = 0
        self.restart(0, 0)

    def state(self) -> dict[str, Any]:
        """Return the part of a Loader's state that describes the order and the batches."""
        sampling = self._sampling
        return {
            "seed": sampling.seed,
            "shuffle": sampling.shuffle,
            "order": sampling.order,
            **(self.order.state if isinstance(self.order, LaneOrder) else {}),
            "num_samples": self.counts.num_samples,
            "global_batch_size": self.counts.global_batch_size,
            "ranks": self.shard.world_size,
            "sampler": "batch_sampler" if sampling.batch_sampler is not None else sampling.sampler is not None,
        }

    def rows(self) -> int:
        """Return the most samples in a batch; with a batch sampler, of this epoch. Larger ones later do not fit a slot."""
        if self._sampler is not None:
            whole = self._sampler.batches(self._epoch, 0, self.counts.epoch_stop, self.counts.global_batch_size)
            return max(len(indices) for indices, _ in whole)
        return -(-min(self.counts.global_batch_size, self.counts.epoch_stop) // self.shard.world_size)

    def restart(self, epoch: int, start: int) -> None:
        """Continue from another position, as a new generation."""
        self.generation += 1
        self._epoch, self._start = epoch, start
        self._ready: deque[Request] = deque()
        if self._schedule is not None:
            self._schedule.restart(epoch, start)

    def _size(self, epoch: int) -> Size:
        return next(size for first, size in reversed(self.sizes) if first <= epoch)

    def _chunk(self, epoch: int, start: int) -> tuple[Array, int, int]:
        """Return thousands of this rank's samples of an epoch, and the epoch and the position after them."""
        if start >= self.counts.epoch_stop:
            epoch, start = epoch + 1, 0
        if self._sampler is not None:
            stop = self.counts.epoch_stop
            known = self._sampler.batches(epoch, start, stop, stop - start) if epoch == self._epoch else ()
            return np.concatenate([np.zeros(0, np.int64), *(indices for indices, _ in known)]), epoch, stop
        indices, _, stop = self._ordered(epoch, start)
        return indices, epoch, stop

    def end(self) -> None:
        """Give up the slots and the announced reads. `restart` must be called before the next batch."""
        self.slots = None
        if self._schedule is not None:
            self._schedule.restart(self._epoch, self._start)

    def known(self) -> bool:
        """Return whether the next request is known: a sampler draws an epoch only when its pass begins."""
        return self._sampler is None or bool(self._ready) or self._start < self.counts.epoch_stop

    def __iter__(self) -> Iterator[Request]:
        while True:
            if self.known():
                self.fill()
                request = self._ready.popleft()
                if self._schedule is not None:
                    self._schedule.draw(len(request.indices))
            # else the last batch is made again, for nobody
            yield request if self.slots is None else request._replace(slot=self.slots.take())

    def take(self) -> list[Request]:
        """Return the next requests, one or more of one epoch, without slots."""
        self.fill()
        taken, self._ready = self._ready, deque()
        return list(taken)

    def fill(self) -> None:
        """If there are no requests, compute the next: several full batches, or the last, smaller one of an epoch."""
        if self._ready:
            return
        if self._start >= self.counts.epoch_stop:
            self._epoch, self._start = self._epoch + 1, 0
        epoch, size, batch = self._epoch, self._size(self._epoch), self.counts.global_batch_size
        for indices, repeats, valid in self._next_batches():
            stop = min(self._start + batch, self.counts.epoch_stop)
            self._ready.append(Request(self.generation, epoch, self._start, stop, indices, repeats, valid, size, self.order.seed))
            self._start = stop
        if self._schedule is not None:
            at_once = self.slots.in_flight + 1 if self.slots else 1
            self._schedule.extend(epoch, at_once * len(self._ready[0].indices))

    def _next_batches(self) -> list[tuple[Array, Array | None, int]]:
        """Return the next batches of this epoch: indices, how often each came before, and the number of real rows."""
        if self._sampler is None:
            indices, valid, _ = self._ordered(self._epoch, self._start)
            rows = -(-self.counts.global_batch_size // self.shard.world_size)
            return [(indices[first : first + rows], None, valid) for first in range(0, len(indices), rows)]
        return [(indices, repeats, len(indices)) for indices, repeats in islice(self._drawn(self._sampler), BATCHES_AHEAD)]

    def _ordered(self, epoch: int, start: int) -> tuple[Array, int, int]:
        """Return this rank's samples of some batches of an epoch, how many per batch are real, and where the last batch stops."""
        batch, end = self.counts.global_batch_size, self.counts.epoch_stop
        full = min(max(AHEAD * self.shard.world_size // batch, 1), (end - start) // batch)
        stop = start + full * batch if full else end
        positions, valid = self.shard.positions(start, stop, batch)
        return self.order.at(epoch, positions), valid, stop

    def _drawn(self, sampler: UserSampler) -> Iterator[Array]:
        """Yield the batches of the sampler in the rest of this epoch."""
        return sampler.batches(self._epoch, self._start, self.counts.epoch_stop, self.counts.global_batch_size)
