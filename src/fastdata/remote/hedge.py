"""Requests that are sent a second time when their answer takes far longer than others did.

An answer that stalls is noticed by the client after seconds without a byte. A second request is mostly faster (Dean and Barroso,
"The tail at scale", Communications of the ACM 56(2), 2013). Few are sent, so that a slow network gets no more to do.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Generic, TypeVar

__all__ = ["Hedge", "Request"]

T = TypeVar("T")

LEAST_S = 0.5  # before a second request
TIMES = 4.0  # as long as the median of those before, of sizes within a factor of two
KEPT = 64  # of which the seconds are kept
SHARE = 0.05  # of the requests that are sent twice at most,
FREE = 2  # beyond these


class Hedge:
    """What is known of the requests to a server. It is safe to use from several threads."""

    def __init__(self) -> None:
        self._seconds = defaultdict[int, deque[float]](lambda: deque(maxlen=KEPT))  # by the bits of the size
        self._sent = self._twice = 0
        self._lock = threading.Lock()

    def send(self, pool: Executor, call: Callable[[], T], size: int) -> Request[T]:
        """Call a function that requests so many bytes, in a thread of a pool. It may be called twice, at the same time."""
        with self._lock:
            self._sent += 1
        return Request(self, pool, call, size.bit_length())

    def note(self, bits: int, seconds: float) -> None:
        """Note how long a request took, for so many bits of a size."""
        with self._lock:
            self._seconds[bits].append(seconds)

    def patience(self, bits: int) -> float:
        """Return the seconds after which a request is late."""
        with self._lock:
            seconds = self._seconds[bits]
            return max(LEAST_S, TIMES * statistics.median(seconds)) if seconds else float("inf")

    def allow(self) -> bool:
        """Return whether a request may be sent a second time."""
        with self._lock:
            allowed = self._twice < FREE + SHARE * self._sent
            self._twice += allowed
            return allowed


class Request(Generic[T]):
    """A request on its way."""

    def __init__(self, hedge: Hedge, pool: Executor, call: Callable[[], T], bits: int) -> None:
        self._hedge = hedge
        self._pool = pool
        self._call = call
        self._bits = bits
        self._began: float | None = None
        self._first = pool.submit(self._timed)

    def _timed(self) -> T:
        self._began = time.monotonic()
        found = self._call()
        self._hedge.note(self._bits, time.monotonic() - self._began)
        return found

    def result(self) -> T:
        """Wait for the first answer that is no error, and return it; if all are errors, raise the first request's."""
        answers: set[Future[T]] = {self._first}
        while not self._first.done():
            left = LEAST_S if self._began is None else self._began + self._hedge.patience(self._bits) - time.monotonic()
            if left <= 0:
                if self._hedge.allow():
                    answers.add(self._pool.submit(self._call))
                break
            wait(answers, min(left, LEAST_S))
        while answers:
            done, answers = wait(answers, return_when=FIRST_COMPLETED)
            for answer in done:
                if answer.exception() is None:
                    return answer.result()
        return self._first.result()

    def cancel(self) -> None:
        """Do not send it, if it has not been sent."""
        self._first.cancel()
