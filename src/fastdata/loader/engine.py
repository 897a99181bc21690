"""What makes the batches of a Loader: worker processes, this process, or a device."""

from __future__ import annotations

from typing import Any, Protocol

from fastdata.loader.fetch import Reply
from fastdata.loader.slots import Slots

__all__ = ["Engine"]


class Engine(Protocol):
    """Batches in the order of the `Requests` that it was made with; it ends with an error, or with `close`."""

    slots: Slots | None

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation; batches of earlier ones are dropped. Raises whatever went wrong."""

    def ready(self) -> bool:
        """Whether `receive` would give the next batch, or raise, without waiting for it to be made."""

    def alive(self) -> bool:
        """Whether it can go on."""

    def died(self, error: BaseException) -> bool:
        """Whether `error`, which `receive` raised, is how the death of a worker shows."""

    def close(self) -> None:
        """Give back what it holds; batches that are still held keep their memory."""
