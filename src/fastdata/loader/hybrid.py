"""The engine of `Loader(backend="hybrid:SHARE")`: worker processes and DALI at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch

from fastdata.images.dataset import ImageDataset
from fastdata.loader.dali import Dali
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests
from fastdata.loader.sizes import Sizes
from fastdata.loader.slots import Slots
from fastdata.loader.workers import Workers

__all__ = ["Hybrid"]


class Split:
    """Distributes requests to engines 0 and 1.

    The number of a batch alone decides, so that a repeated or resumed run has the same pixels.

    Args:
        requests: the requests for both engines.
        share: the share of the batches that engine 1 makes. An engine that runs ahead queues up to 1 / share requests for the other
            one for each of its own.
    """

    def __init__(self, requests: Requests, share: Fraction) -> None:
        self.requests = requests
        self._share = share
        self._drawn = iter(requests)
        self._generation = requests.generation
        self._turns: deque[int] = deque()
        self._waiting: tuple[deque[Request], deque[Request]] = deque(), deque()

    def turn(self) -> int:
        """Return the engine that makes the next batch to deliver."""
        self._drop_outdated()
        if not self._turns:
            self._draw()
        return self._turns[0]

    def delivered(self) -> None:
        """Note that the next batch was received."""
        self._turns.popleft()

    def next(self, engine: int) -> Request:
        """Return the next request of an engine."""
        self._drop_outdated()
        while not self._waiting[engine]:
            self._draw()
        return self._waiting[engine].popleft()

    def _draw(self) -> None:
        request = next(self._drawn)
        number = self.requests.number(request)
        engine = int((number + 1) * self._share) - int(number * self._share)
        self._turns.append(engine)
        self._waiting[engine].append(request)

    def _drop_outdated(self) -> None:
        """Forget what was drawn before the requests were restarted."""
        if self._generation != self.requests.generation:
            self._generation = self.requests.generation
            for queue in (self._turns, *self._waiting):
                queue.clear()


class Half:
    """The requests of one engine."""

    def __init__(self, split: Split, engine: int) -> None:
        self._split = split
        self._engine = engine
        self.slots: Slots | None = None

    @property
    def sizes(self) -> Sizes:
        return self._split.requests.sizes

    def fill(self) -> None:
        self._split.requests.fill()

    def rewind(self) -> None:
        self._split.requests.rewind()

    def __iter__(self) -> Iterator[Request]:
        while True:
            request = self._split.next(self._engine)
            yield request if self.slots is None else request._replace(slot=self.slots.take())


class Hybrid(Engine):
    """Workers and DALI, each making its share of the batches at the same time.

    Args:
        dataset: a dataset of images stored as JPEGs.
        requests: the requests, in order.
        share: the share of the batches that DALI makes, between 0 and 1.
        counts, pin_memory, device, ahead: as for `Workers`.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        requests: Requests,
        share: Fraction,
        *counts: int,
        pin_memory: bool,
        device: torch.device | None,
        ahead: int = 0,
    ) -> None:
        self._split = Split(requests, share)
        options: dict[str, Any] = {"pin_memory": pin_memory, "device": device}
        self._workers = Workers.start(dataset, Half(self._split, 0), *counts, **options, ahead=ahead)  # before DALI has threads
        self._dali = Dali(dataset, Half(self._split, 1), *counts, **options)
        self.slots = self._workers.slots

    def receive(self, generation: int) -> tuple[Reply, Any]:
        received = self._next().receive(generation)
        self._split.delivered()
        return received

    def ready(self) -> bool:
        return self._next().ready()

    def _next(self) -> Workers | Dali:
        return (self._workers, self._dali)[self._split.turn()]

    def alive(self) -> bool:
        return self._workers.alive()

    def died(self, error: BaseException) -> bool:
        return self._workers.died(error)

    def close(self) -> None:
        try:
            self._dali.close()
        finally:
            self._workers.close()
