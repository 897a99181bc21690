"""An engine's batches, copied to a device ahead of the consumer."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from fastdata.gpu.copies import Copier, Copy
from fastdata.gpu.lookahead import Ahead
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply

__all__ = ["Feed"]


class Feed:
    """An engine of batches on a device.

    A batch that has begun its way is never held back by a later one: further copies begin only with batches that are made, and an
    error comes when those before it are handed out.

    Args:
        engine: makes the batches, in memory of the host.
        device: where they go.
        depth: the most batches on their way, or there, ahead of the consumer.
        pin: batches that are not page-locked are copied through memory that is.
    """

    def __init__(self, engine: Engine, device: torch.device, depth: int, *, pin: bool) -> None:
        self.slots = engine.slots
        self._engine, self._generation = engine, -1
        self._copier = Copier(device, pin=pin)
        self._ahead = Ahead[tuple[Reply, Copy]](depth)
        if self.slots is not None:
            self.slots.reclaim = self._copier.reclaim
        weakref.finalize(self, self._copier.close).atexit = False  # before the slots that are copied lose their page lock

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation, for use on the current stream."""
        if generation != self._generation:
            self._generation, error = generation, self._ahead.clear()
            if error is not None and self._engine.died(error):
                raise error
        reply, copy = self._ahead.take(self._draw, self._engine.ready)
        return reply, copy.take()

    def _draw(self) -> tuple[Reply, Copy]:
        reply, data = self._engine.receive(self._generation)
        return reply, self._copier.start(data)

    def ready(self) -> bool:
        return len(self._ahead) > 0 or self._engine.ready()

    def alive(self) -> bool:
        return self._engine.alive()

    def died(self, error: BaseException) -> bool:
        return self._engine.died(error)

    def close(self) -> None:
        self._ahead.clear()
        try:
            self._copier.close()
        finally:
            self._engine.close()
