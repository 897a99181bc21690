"""Looking ahead without waiting: what is there is given out, however long the next one takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """A queue of up to `depth` things that were drawn before they were asked for. An error comes after what was drawn before it."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._drawn: deque[T] = deque()
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._drawn)

    def take(self, draw: Callable[[], T], ready: Callable[[], bool]) -> T:
        """The next one. Further ones are drawn while they are `ready`; only where none is left, the next is waited for."""
        if not self._drawn and self._error is None:
            self._drawn.append(draw())
        try:
            while self._error is None and len(self._drawn) <= self._depth and ready():
                self._drawn.append(draw())
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to a later one
            self._error = error
        if self._drawn:
            return self._drawn.popleft()
        late = self.clear()
        assert late is not None
        try:
            raise late
        finally:
            del late  # its traceback holds this frame

    def clear(self) -> Exception | None:
        """Forget what was drawn. Returns the error that was still to come."""
        self._drawn.clear()
        error, self._error = self._error, None
        return error
