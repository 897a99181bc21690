"""The endless list of batches that torch's DataLoader draws from, ahead of the consumer."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from fastdata.data.random import lent_generators, loose_seeds, occurrences
from fastdata.errors import LoaderError
from fastdata.loader.fetch import Request
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.sizes import Sizes
from fastdata.loader.slots import Slots

__all__ = ["Requests", "Source"]

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLER_STREAM = 1 << 62  # no sample has this number
AHEAD = 16_384  # samples whose order is computed at once: numpy's cost per call is spread over many batches


class Source(Protocol):
    """Where an engine draws its requests from: all that there are, or its share of them."""

    slots: Slots | None

    @property
    def sizes(self) -> Sizes: ...

    def fill(self) -> None: ...

    def again(self) -> None: ...

    def __iter__(self) -> Iterator[Request]: ...


class Requests:
    """Goes from epoch to epoch without a border, so that the next one's first batches are made while the last ones are consumed.

    Args:
        order: of the samples.
        part: this rank's share of it.
        global_batch_size: samples of a batch on all ranks.
        stop: where an epoch ends.
        sampler: this rank's indices, instead of `order` and `part`.
        batch_sampler: this rank's batches, lists of indices, instead of all these; a place is then the number of a batch.

    Attributes:
        slots: to take one for each request from, or None.
        sizes: of the epochs.
    """

    def __init__(
        self,
        order: EpochOrder,
        part: Part,
        global_batch_size: int,
        stop: int,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
    ) -> None:
        self._order, self._part, self._batch, self._stop = order, part, global_batch_size, stop
        self._sampler: Any = sampler
        self._batch_sampler: Any = batch_sampler
        self.slots: Slots | None = None
        self.generation = 0
        self.restart(0, 0, Sizes.of(None))

    def rows(self) -> int:
        """Count the most samples of a batch; with a batch sampler, in the epoch that begins: larger ones are copied."""
        if self._batch_sampler is not None:
            return max(len(indices) for indices, _ in self.batches())
        ranks = 1 if self._sampler is not None else self._part.world_size
        return -(-min(self._batch, self._stop) // ranks)

    def restart(self, epoch: int, start: int, sizes: Sizes) -> None:
        """Go on from another place; the generation tells replies to earlier requests apart."""
        self.generation += 1
        self._begun, self._epoch, self._start, self.sizes = (epoch, start, sizes), epoch, start, sizes
        self._ready: deque[Request] = deque()
        self._drawn: Array | None = None
        self._drawn_batches: list[Any] | None = None

    def again(self) -> None:
        """Go on from where the last restart began."""
        self.restart(*self._begun)

    def __iter__(self) -> Iterator[Request]:
        while True:
            self.fill()
            request = self._ready.popleft()
            yield request if self.slots is None else request._replace(slot=self.slots.take())

    def number(self, request: Request) -> int:
        """Of its batch, counted from the first one of epoch 0."""
        return request.epoch * -(-self._stop // self._batch) + request.start // self._batch

    def take(self) -> list[Request]:
        """The next requests, several of one epoch, without slots."""
        self.fill()
        taken, self._ready = list(self._ready), deque()
        return taken

    def fill(self) -> None:
        """Compute the next requests, if there are none: several whole batches, or the last one of an epoch, which is smaller."""
        if self._ready:
            return
        if self._start >= self._stop:
            self._epoch, self._start, self._drawn, self._drawn_batches = self._epoch + 1, 0, None, None
        if self._batch_sampler is not None:
            self._ready.append(self._drawn_request())
            return
        epoch, start, batch = self._epoch, self._start, self._batch
        rows = batch if self._sampler is not None else batch // self._part.world_size
        whole = min(max(AHEAD // rows, 1), (self._stop - start) // batch)
        stop = self._start = start + whole * batch if whole else self._stop
        indices, repeats, valid = self._samples(start, stop)
        size, seed, real = self.sizes.at(epoch), self._order.seed, rows if whole else valid
        for k, first in enumerate(range(start, stop, batch)):
            part, last = slice(k * rows, (k + 1) * rows), min(first + batch, stop)
            again = None if repeats is None else repeats[part]
            self._ready.append(Request(self.generation, epoch, first, last, indices[part], again, real, size, seed))

    def _drawn_request(self) -> Request:
        """The next batch of the batch sampler."""
        batches, k = self.batches(), self._start
        self._start += 1
        indices, repeats = batches[k]
        size, seed = self.sizes.at(self._epoch), self._order.seed
        return Request(self.generation, self._epoch, k, k + 1, indices, repeats, len(indices), size, seed)

    def batches(self) -> list[Any]:
        """What the batch sampler gives for this epoch: of each batch, its indices and how often each came before, int64 [2, n]."""
        if self._drawn_batches is None:
            with self._own_generators(self._batch_sampler):
                lists = [_indices(batch, "batch_sampler") for batch in self._batch_sampler]
            if len(lists) != self._stop:
                raise LoaderError(f"batch_sampler gave {len(lists)} batches, but its len() is {self._stop}")
            if not all(map(len, lists)):
                raise LoaderError("batch_sampler gave an empty batch")
            drawn = np.concatenate(lists)
            ends = np.cumsum([len(batch) for batch in lists])[:-1]
            self._drawn_batches = np.split(np.stack([drawn, occurrences(drawn)]), ends, axis=1)
        return self._drawn_batches

    def _samples(self, start: int, stop: int) -> tuple[Array, Array | None, int]:
        """This rank's samples of a part of the epoch, how often each came before if a sampler draws them, and how many are real."""
        if self._sampler is None:
            places, valid = self._part.places(start, stop, self._batch)
            return self._order.at(self._epoch, places), None, valid
        if self._drawn is None:
            self._drawn = self._draw()
        indices, repeats = self._drawn[:, start:stop]
        return indices, repeats, stop - start

    def _draw(self) -> Array:
        """Indices of an epoch, and how often each came before in it: int64 [2, n]."""
        with self._own_generators(self._sampler):
            indices = _indices(self._sampler, "sampler")
        if len(indices) < self._stop:
            raise LoaderError(f"the sampler ended after {len(indices)} indices, but its len() is {len(self._sampler)}")
        return np.stack([indices, occurrences(indices)])

    @contextmanager
    def _own_generators(self, sampler: Any) -> Iterator[None]:
        """Tell a sampler the epoch, and seed what it may draw from by (seed, epoch): a resumed epoch has the same list."""
        parts: tuple[Any, ...] = (sampler, getattr(sampler, "sampler", None))
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._epoch)
                break
        with lent_generators() as reseed:
            reseed(loose_seeds(self._order.seed, self._epoch, [SAMPLER_STREAM])[0])
            yield


def _indices(drawn: Iterable[Any], name: str) -> Array:
    """The indices that a sampler gives, int64."""
    try:
        return np.fromiter((operator.index(k) for k in drawn), np.int64)
    except TypeError as error:
        what = "lists of indices" if name == "batch_sampler" else "one index after another; lists of them go to batch_sampler="
        raise LoaderError(f"{name} must give {what}: {error}") from error
