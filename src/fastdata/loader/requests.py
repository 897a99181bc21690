"""The endless list of batches that torch's DataLoader draws from, ahead of the consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fastdata.data.random import lent_generators, loose_seeds, occurrences
from fastdata.errors import LoaderError
from fastdata.loader.fetch import Request
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.sizes import Sizes
from fastdata.loader.slots import Slots

__all__ = ["Requests"]

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLER_STREAM = 1 << 62  # no sample has this number
AHEAD = 4096  # samples whose order is computed at once: numpy's cost per call is spread over many batches


class Requests:
    """Goes from epoch to epoch without a border, so that the next one's first batches are made while the last ones are consumed.

    Args:
        order: of the samples.
        part: this rank's share of it.
        global_batch_size: samples of a batch on all ranks.
        stop: where an epoch ends.
        sampler: this rank's indices, instead of `order` and `part`.

    Attributes:
        slots: to take one for each request from, or None.
        sizes: of the epochs.
    """

    def __init__(self, order: EpochOrder, part: Part, global_batch_size: int, stop: int, sampler: Iterable[int] | None) -> None:
        self._order, self._part, self._batch, self._stop = order, part, global_batch_size, stop
        self._sampler: Any = sampler
        self.slots: Slots | None = None
        self.generation = 0
        self.restart(0, 0, Sizes.of(None))

    def restart(self, epoch: int, start: int, sizes: Sizes) -> None:
        """Go on from another place; the generation tells replies to earlier requests apart."""
        self.generation += 1
        self._epoch, self._start, self.sizes = epoch, start, sizes
        self._ready: deque[Request] = deque()
        self._drawn: Array | None = None

    def __iter__(self) -> Iterator[Request]:
        while True:
            self.fill()
            request = self._ready.popleft()
            yield request if self.slots is None else request._replace(slot=self.slots.take())

    def take(self) -> list[Request]:
        """The next requests, several of one epoch, without slots."""
        self.fill()
        taken, self._ready = list(self._ready), deque()
        return taken

    def fill(self) -> None:
        """Compute the next requests, if there are none."""
        if not self._ready:
            if self._start >= self._stop:
                self._epoch, self._start, self._drawn = self._epoch + 1, 0, None
            self._ready.extend(self._sampled() if self._sampler is not None else self._ordered())

    def _bounds(self) -> tuple[int, int]:
        start, self._start = self._start, min(self._start + self._batch, self._stop)
        return start, self._start

    def _ordered(self) -> Iterator[Request]:
        """Several whole batches; or the last one of an epoch, which is smaller."""
        rows = self._batch // self._part.world_size
        whole = min(max(AHEAD // rows, 1), (self._stop - self._start) // self._batch)
        start = self._start
        places, valid = self._part.places(start, min(start + max(whole, 1) * self._batch, self._stop))
        samples = self._order.at(self._epoch, places)
        for k in range(max(whole, 1)):
            first, stop = self._bounds()
            yield self._request(first, stop, samples[k * rows : (k + 1) * rows], rows if whole else valid)

    def _sampled(self) -> Iterator[Request]:
        """The next batch of the user's sampler, whose list for the epoch is drawn at once."""
        if self._drawn is None:
            self._drawn = self._draw()
        start, stop = self._bounds()
        indices, repeats = self._drawn[:, start:stop]
        yield self._request(start, stop, indices, len(indices), repeats)

    def _draw(self) -> Array:
        """Indices of an epoch, and how often each came before in it: int64 [2, n].

        The generators that a sampler may draw from are seeded by (seed, epoch), so that a resumed epoch has the same list.
        """
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self._epoch)
        with lent_generators() as reseed:
            reseed(loose_seeds(self._order.seed, self._epoch, [SAMPLER_STREAM])[0])
            indices = np.fromiter((int(k) for k in self._sampler), np.int64)
        if len(indices) < self._stop:
            raise LoaderError(f"the sampler ended after {len(indices)} indices, but its len() is {len(self._sampler)}")
        return np.stack([indices, occurrences(indices)])

    def _request(self, start: int, stop: int, indices: Array, valid: int, repeats: Array | None = None) -> Request:
        size = self.sizes.at(self._epoch)
        return Request(self.generation, self._epoch, start, stop, indices, repeats, valid, size, self._order.seed)
