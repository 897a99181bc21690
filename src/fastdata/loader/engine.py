"""Engines that make the batches of a Loader in worker processes, in this process or on a device, and copy them to a device."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from fastdata.gpu.copies import Copier, Copy, CopyQueue
from fastdata.loader.fetch import Reply
from fastdata.loader.slots import Slots


class Engine(Protocol):
    """Makes batches in the order of its `Requests`, until an error or `close`. The defaults here suit one without processes."""

    slots: Slots | None = None

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation, and drop those of earlier ones. Raise the error of a failed batch."""

    def ready(self) -> bool:
        """Return whether `receive` would return the next batch, or raise, without waiting for it to be made."""
        return False

    def alive(self) -> bool:
        """Return whether the engine can continue."""
        return True

    def close(self) -> None:
        """Release all resources; batches still held keep their memory."""


class DevicePrefetchEngine(Engine):
    """Another engine's batches, up to `depth` of them copied to a device ahead of the consumer.

    No batch waits for a later one: only finished batches are copied ahead, and an error is raised after the batches before it.
    """

    def __init__(self, engine: Engine, device: torch.device, depth: int, *, pin: bool) -> None:
        self.slots = engine.slots
        self.alive = engine.alive  # type: ignore[method-assign]
        self._engine = engine
        self._generation = -1
        self._copier = Copier(device, pin=pin)
        self._queue = CopyQueue[tuple[Reply, Copy]](depth)
        if self.slots is not None:
            self.slots.reclaim = self._copier.reclaim
        weakref.finalize(self, self._copier.close).atexit = False  # before the slots being copied lose their page lock

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation, for use on the current stream."""
        if generation != self._generation:
            self._generation = generation
            self._queue.clear()
        reply, copy = self._queue.take(self._draw, self._engine.ready)
        return reply, copy.take()

    def _draw(self) -> tuple[Reply, Copy]:
        reply, data = self._engine.receive(self._generation)
        return reply, self._copier.start(data)

    def ready(self) -> bool:
        return len(self._queue) > 0 or self._engine.ready()

    def close(self) -> None:
        self._queue.clear()
        try:
            self._copier.close()
        finally:
            self._engine.close()
