"""Copies an engine's batches to a device ahead of the consumer."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from fastdata.gpu.copies import Copier, Copy
from fastdata.gpu.lookahead import Ahead
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply

__all__ = ["Feed"]


class Feed(Engine):
    """Another engine's batches, on a device.

    No batch waits for a later one: only finished batches are copied ahead, and an error is raised after the batches before it.

    Args:
        engine: makes the batches, in host memory.
        device: where to copy them.
        depth: the most batches that are copied ahead of the consumer.
        pin: copy batches that are not page-locked through memory that is.
    """

    def __init__(self, engine: Engine, device: torch.device, depth: int, *, pin: bool) -> None:
        self.slots = engine.slots
        self._engine = engine
        self._generation = -1
        self._copier = Copier(device, pin=pin)
        self._ahead = Ahead[tuple[Reply, Copy]](depth)
        if self.slots is not None:
            self.slots.reclaim = self._copier.reclaim
        weakref.finalize(self, self._copier.close).atexit = False  # before the slots being copied lose their page lock

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation, for use on the current stream."""
        if generation != self._generation:
            self._generation = generation
            error = self._ahead.clear()
            if error is not None and self._engine.died(error):
                raise error
            del error  # the next one's traceback refers to this frame: they would form a chain that keeps every batch
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
