"""Looking ahead without waiting: an item that is ready is returned, however long the next one takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """A queue of up to `depth` items that are drawn ahead. An error is raised after the items that were drawn before it."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._drawn: deque[T] = deque()
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._drawn)

    def take(self, draw: Callable[[], T], ready: Callable[[], bool]) -> T:
        """Return the next item, and draw more while they are `ready`. Wait for an item only if none is left."""
        if not self._drawn and self._error is None:
            self._drawn.append(draw())
        try:
            while self._error is None and len(self._drawn) <= self._depth and ready():
                self._drawn.append(draw())
        except Exception as error:  # noqa: BLE001  it belongs to a later item
            self._error = error
        if self._drawn:
            return self._drawn.popleft()
        late = self.clear()
        assert late is not None
        try:
            raise late
        finally:
            del late  # its traceback refers to this frame

    def clear(self) -> Exception | None:
        """Drop all items. Returns the error that was still to be raised."""
        self._drawn.clear()
        error, self._error = self._error, None
        return error
