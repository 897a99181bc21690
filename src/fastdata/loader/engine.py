"""What makes the batches of a Loader: worker processes, this process, or a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from fastdata.loader.fetch import Reply
from fastdata.loader.slots import Slots

__all__ = ["Engine", "detach_after_fork"]


class Engine(Protocol):
    """Makes batches in the order of its `Requests`, until an error or `close` ends it.

    The methods with a body suit an engine without worker processes.
    """

    slots: Slots | None = None

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation, and drop those of earlier ones. Raise whatever went wrong."""

    def ready(self) -> bool:
        """Return whether `receive` would return the next batch, or raise, without waiting for it to be made."""
        return False

    def alive(self) -> bool:
        """Return whether it can continue."""
        return True

    def died(self, error: BaseException) -> bool:
        """Return whether `error`, raised by `receive`, means that a worker died."""
        return False

    def close(self) -> None:
        """Release all resources; batches still held keep their memory."""


_detachers = WeakKeyDictionary[Any, Callable[[Any], Engine | None]]()
_parents_engines = list[Engine | None]()  # kept in the child: freeing them would end the parent's workers


def detach_after_fork(loader: Any, detach: Callable[[Any], Engine | None]) -> None:
    """Call `detach(loader)` in every forked child: the engine's workers answer the parent, so a child starts its own."""
    _detachers[loader] = detach


def _after_fork() -> None:
    _parents_engines.extend([detach(loader) for loader, detach in list(_detachers.items())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
