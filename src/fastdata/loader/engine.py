"""What makes the batches of a Loader: worker processes, this process, or a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from fastdata.loader.fetch import Reply
from fastdata.loader.slots import Slots

__all__ = ["Engine", "let_go_after_fork"]


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


_owners = WeakKeyDictionary[Any, Callable[[Any], Engine | None]]()
_parents = list[Engine | None]()  # engines of the parent process; their end would end its workers


def let_go_after_fork(loader: Any, let_go: Callable[[Any], Engine | None]) -> None:
    """Call `let_go(loader)` in every forked child: the workers of its engine answer the parent, so a child starts its own."""
    _owners[loader] = let_go


def _after_fork() -> None:
    _parents.extend([let_go(loader) for loader, let_go in list(_owners.items())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
