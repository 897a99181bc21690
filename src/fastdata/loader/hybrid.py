"""The engine of `Loader(backend="hybrid:SHARE")`: worker processes and DALI side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch

from fastdata.images.dataset import ImageDataset
from fastdata.loader.dali import Dali
from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests
from fastdata.loader.sizes import Sizes
from fastdata.loader.slots import Slots
from fastdata.loader.workers import Workers

__all__ = ["Hybrid"]


class Split:
    """Requests shared out among two engines, number 0 and number 1.

    The number of a batch decides, and nothing else: a run that is repeated or resumed has the same pixels.

    Args:
        requests: of both.
        share: of the batches, that engine 1 makes. An engine that runs ahead leaves up to 1 / share requests to the other one for
            each of its own.
    """

    def __init__(self, requests: Requests, share: Fraction) -> None:
        self.requests, self._share, self._drawn = requests, share, iter(requests)
        self._generation = requests.generation
        self._turns: deque[int] = deque()
        self._waiting: tuple[deque[Request], deque[Request]] = deque(), deque()

    def turn(self) -> int:
        """Which engine makes the next batch that is to be delivered."""
        self._keep_up()
        if not self._turns:
            self._draw()
        return self._turns[0]

    def delivered(self) -> None:
        """The next batch has been received."""
        self._turns.popleft()

    def next(self, engine: int) -> Request:
        """The next request of an engine."""
        self._keep_up()
        while not self._waiting[engine]:
            self._draw()
        return self._waiting[engine].popleft()

    def _draw(self) -> None:
        request = next(self._drawn)
        number = self.requests.number(request)
        engine = int((number + 1) * self._share) - int(number * self._share)
        self._turns.append(engine)
        self._waiting[engine].append(request)

    def _keep_up(self) -> None:
        """Forget what was drawn before the loader changed its mind."""
        if self._generation != self.requests.generation:
            self._generation = self.requests.generation
            for queue in (self._turns, *self._waiting):
                queue.clear()


class Half:
    """The requests of one engine, as it draws them."""

    def __init__(self, split: Split, engine: int) -> None:
        self._split, self._engine = split, engine
        self.slots: Slots | None = None

    @property
    def sizes(self) -> Sizes:
        return self._split.requests.sizes

    def fill(self) -> None:
        self._split.requests.fill()

    def again(self) -> None:
        self._split.requests.again()

    def __iter__(self) -> Iterator[Request]:
        while True:
            request = self._split.next(self._engine)
            yield request if self.slots is None else request._replace(slot=self.slots.take())


class Hybrid:
    """Workers and DALI, which make their shares of the batches at the same time.

    Args:
        dataset: of images, held as JPEGs.
        requests: what is asked for, in order.
        share: of the batches, that DALI makes; between 0 and 1.
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
        """The next batch of this generation."""
        received = (self._workers, self._dali)[self._split.turn()].receive(generation)
        self._split.delivered()
        return received

    def ready(self) -> bool:
        return (self._workers, self._dali)[self._split.turn()].ready()

    def alive(self) -> bool:
        return self._workers.alive()

    def died(self, error: BaseException) -> bool:
        return self._workers.died(error)

    def close(self) -> None:
        try:
            self._dali.close()
        finally:
            self._workers.close()
