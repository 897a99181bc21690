"""What makes the batches of a Loader: worker processes, this process, or a device."""

from __future__ import annotations

from typing import Any, Protocol

from fastdata.loader.fetch import Reply
from fastdata.loader.slots import Slots

__all__ = ["Engine"]


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
