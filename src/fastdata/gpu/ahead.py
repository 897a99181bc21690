"""Looking ahead without waiting: what is there is given out, however long the next one takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.utils.data import dataloader

__all__ = ["Ahead", "arrived"]

T = TypeVar("T")
NEEDED = ("_data_queue", "_dataset_kind", "_rcvd_idx", "_task_info", "_tasks_outstanding", "_try_get_data")


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


def arrived(batches: Any) -> bool | None:
    """Whether the next batch of an iterator is there; None: nobody can tell.

    An iterator of torch's DataLoader with workers can, also of a batch that waits behind others in the workers' queue; without
    workers, a batch is never there before it is asked for.
    """
    if isinstance(batches, dataloader._SingleProcessDataLoaderIter):
        return False
    if type(batches) is not dataloader._MultiProcessingDataLoaderIter or not all(hasattr(batches, name) for name in NEEDED):
        return None
    in_order = getattr(batches, "_in_order", True) and batches._dataset_kind == dataloader._DatasetKind.Map
    while len(batches._task_info.get(batches._rcvd_idx, ())) < 2:
        if batches._data_queue.empty():
            return False
        if not in_order:  # then the first in the queue is the next, or tells that a worker has no more
            return True
        there, message = batches._try_get_data()  # type: ignore[no-untyped-call]
        if not there:
            return False
        batches._tasks_outstanding -= 1  # as its own `_next_data` does it
        batches._task_info[message[0]] += (message[1],)
    return True
