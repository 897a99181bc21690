"""The endless list of batches that an engine draws from, ahead of the consumer."""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastdata.data.dataset import SlotDataset
from fastdata.data.random import lent_generators, loose_seeds, occurrences
from fastdata.errors import LoaderError
from fastdata.loader.fetch import Request
from fastdata.loader.lanes import LaneOrder
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.sizes import Sizes, sized
from fastdata.loader.slots import Slots
from fastdata.remote.prefetch import ScheduleWriter

__all__ = ["Requests"]

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLER_STREAM = 1 << 62  # no sample has this number
AHEAD = 16_384  # samples whose order is computed at once, to spread numpy's cost per call over many batches


class Requests:
    """Requests of all epochs, without a gap: the first batches of an epoch are made while the last of the one before are consumed.

    Args:
        order: of the samples.
        part: this rank's share of it.
        global_batch_size: samples of a batch on all ranks.
        stop: where an epoch ends.
        sizes: of the epochs.
        sampler: yields this rank's indices, in place of `order` and `part`.
        batch_sampler: yields this rank's batches, lists of indices, in place of all these; positions then count batches.
        among: the number of samples that samplers choose from; None: the dataset knows what their indices mean.

    Attributes:
        slots: where each request takes a slot from, or None.
        generation: the number of restarts; it marks replies to requests from before the last one.
    """

    def __init__(
        self,
        order: EpochOrder | LaneOrder,
        part: Part,
        global_batch_size: int,
        stop: int,
        sizes: Sizes,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        among: int | None = None,
    ) -> None:
        self._order = order
        self._part = part
        self._batch = global_batch_size
        self._stop = stop
        self.sizes = sizes
        self._sampler: Any = sampler
        self._batch_sampler: Any = batch_sampler
        self._among = among
        self.slots: Slots | None = None
        self._schedule: ScheduleWriter | None = None
        self.generation = 0
        self.restart(0, 0)

    def rows(self) -> int:
        """Return the most samples of a batch; with a batch sampler, those of the coming epoch, and larger batches are copied."""
        if self._batch_sampler is not None:
            return max(len(indices) for indices, _ in self._batches())
        ranks = 1 if self._sampler is not None else self._part.world_size
        return -(-min(self._batch, self._stop) // ranks)

    def restart(self, epoch: int, start: int) -> None:
        """Continue from another position, as a new generation."""
        self.generation += 1
        self._restarted_at = epoch, start
        self._epoch, self._start = epoch, start
        self._fills = 1
        self._ready: deque[Request] = deque()
        self._drawn: Array | None = None
        self._drawn_batches: list[Any] | None = None
        if self._schedule is not None:
            self._schedule.restart(epoch, start)

    def announce(self, dataset: Any) -> None:
        """Tell where a remote dataset comes from which of its shards will be read."""
        if self._batch_sampler is None and isinstance(dataset, SlotDataset) and dataset.remote:
            own = weakref.proxy(self)  # no cycle: the fetcher is to see at once that these requests are gone
            self._schedule = ScheduleWriter(
                lambda epoch, ids: sized(dataset, own.sizes.at(epoch)).uses(ids), lambda *at: own._chunk(*at)
            )
            self._schedule.restart(self._epoch, self._start)

    def _chunk(self, epoch: int, start: int) -> tuple[Array, int, int]:
        """Return some thousand of this rank's samples of an epoch, and the epoch and the place after them."""
        if start >= self._stop:
            epoch, start = epoch + 1, 0
        if self._sampler is not None:
            own = self._drawn is not None and epoch == self._epoch
            return (self._drawn[0, start:] if own and self._drawn is not None else np.zeros(0, np.int64)), epoch, self._stop
        full = min(max(AHEAD * self._part.world_size // self._batch, 1), (self._stop - start) // self._batch)
        stop = start + full * self._batch if full else self._stop
        return self._order.at(epoch, self._places(start, stop)[0]), epoch, stop

    def end(self) -> None:
        """Give the slots up, and expect nothing more. A restart follows before the next batch."""
        self.slots = None
        if self._schedule is not None:
            self._schedule.end()

    def rewind(self) -> None:
        """Continue from where the last restart began."""
        self.restart(*self._restarted_at)

    def __iter__(self) -> Iterator[Request]:
        while True:
            self.fill()
            request = self._ready.popleft()
            if self._schedule is not None:
                self._schedule.draw(len(request.indices))
            yield request if self.slots is None else request._replace(slot=self.slots.take())

    def take(self) -> list[Request]:
        """Return the next requests, one or more, without slots.

        They may be of several epochs, if these are small: more each time, until the next restart. What a sampler draws is of one.
        """
        taken, samples = list[Request](), 0
        fills = self._fills if self._sampler is None and self._batch_sampler is None else 1
        while not taken or (fills > 0 and samples < AHEAD // 2):
            self.fill()
            samples += sum(len(request.indices) for request in self._ready)
            taken += self._ready
            self._ready.clear()
            fills -= 1
        self._fills = min(2 * self._fills, AHEAD)
        return taken

    def fill(self) -> None:
        """If there are no requests, compute the next: several full batches, or the last, smaller one of an epoch."""
        if self._ready:
            return
        if self._start >= self._stop:
            self._epoch, self._start = self._epoch + 1, 0
            self._drawn = None
            self._drawn_batches = None
        if self._batch_sampler is not None:
            self._ready.append(self._drawn_request())
            return
        epoch, start, batch = self._epoch, self._start, self._batch
        rows = batch if self._sampler is not None else -(-batch // self._part.world_size)
        full = min(max(AHEAD // rows, 1), (self._stop - start) // batch)
        stop = self._start = start + full * batch if full else self._stop
        indices, repeats, valid = self._samples(start, stop)
        size = self.sizes.at(epoch)
        for k, first in enumerate(range(start, stop, batch)):
            part = slice(k * rows, (k + 1) * rows)
            last = min(first + batch, stop)
            repeat = None if repeats is None else repeats[part]
            self._ready.append(Request(self.generation, epoch, first, last, indices[part], repeat, valid, size, self._order.seed))
        if self._schedule is not None:
            at_once = rows * (1 if self.slots is None else self.slots.in_flight + 1)
            self._schedule.extend(epoch, at_once)

    def _drawn_request(self) -> Request:
        """Return the request for the batch sampler's next batch."""
        k = self._start
        indices, repeats = self._batches()[k]
        self._start += 1
        size = self.sizes.at(self._epoch)
        return Request(self.generation, self._epoch, k, k + 1, indices, repeats, len(indices), size, self._order.seed)

    def _batches(self) -> list[Any]:
        """Return the batch sampler's batches of this epoch: the indices, and how often each came before, int64 [2, n]."""
        if self._drawn_batches is None:
            with self._seeded(self._batch_sampler):
                lists = [_indices(batch, "batch_sampler", self._among) for batch in self._batch_sampler]
            if len(lists) != self._stop:
                raise LoaderError(f"batch_sampler gave {len(lists)} batches, but its len() is {self._stop}")
            if not all(map(len, lists)):
                raise LoaderError("batch_sampler gave an empty batch")
            drawn = np.concatenate(lists)
            ends = np.cumsum([len(batch) for batch in lists])[:-1]
            self._drawn_batches = np.split(np.stack([drawn, occurrences(drawn)]), ends, axis=1)
        return self._drawn_batches

    def _samples(self, start: int, stop: int) -> tuple[Array, Array | None, int]:
        """Return this rank's samples of a part of the epoch, a sampler's repeats (None without one), and how many of a
        batch are real."""
        if self._sampler is None:
            places, valid = self._places(start, stop)
            return self._order.at(self._epoch, places), None, valid
        if self._drawn is None:
            self._drawn = self._draw()
        indices, repeats = self._drawn[:, start:stop]
        return indices, repeats, min(self._batch, stop - start)

    def _places(self, start: int, stop: int) -> tuple[Array, int]:
        """Return this rank's places of a part of the epoch, and how many of a batch are real."""
        return self._part.places(start, stop, self._batch, getattr(self._order, "lanes", 0))

    def _draw(self) -> Array:
        """Return the sampler's indices of an epoch, and how often each came before in it: int64 [2, n]."""
        with self._seeded(self._sampler):
            indices = _indices(self._sampler, "sampler", self._among)
        if len(indices) < self._stop:
            raise LoaderError(f"the sampler ended after {len(indices)} indices, but its len() is {len(self._sampler)}")
        return np.stack([indices, occurrences(indices)])

    @contextmanager
    def _seeded(self, sampler: Any) -> Iterator[None]:
        """Tell a sampler the epoch, and seed the generators that it may use by (seed, epoch): a resumed epoch has the same list."""
        inner = getattr(sampler, "sampler", None)
        if set_epoch := getattr(sampler, "set_epoch", None) or getattr(inner, "set_epoch", None):
            set_epoch(self._epoch)
        with lent_generators() as reseed:
            reseed(loose_seeds(self._order.seed, self._epoch, [SAMPLER_STREAM])[0])
            yield


def _indices(drawn: Iterable[Any], name: str, among: int | None) -> Array:
    """Return the indices that a sampler yields, int64. Negative ones count from the end, as in `dataset[-1]`.

    Raises:
        LoaderError: it yields something else.
        IndexError: there is no such sample.
    """
    try:
        found = np.fromiter((operator.index(k) for k in drawn), np.int64)
    except OverflowError:
        raise IndexError(f"{name} gave an index that is not below 2^63") from None
    except TypeError as error:
        expected = "lists of indices" if name == "batch_sampler" else "one index after another; lists of them go to batch_sampler="
        raise LoaderError(f"{name} must give {expected}: {error}") from error
    if among is None:
        return found
    if (wrong := found[(found < -among) | (found >= among)]).size:
        raise IndexError(f"{name} gave the index {wrong[0]}, but the dataset has {among} samples")
    return np.where(found < 0, found + among, found)
