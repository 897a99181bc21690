"""A watchdog that ends contestants which fail or do not answer in time; the others continue."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastdata.bench.harness import Run
from fastdata.bench.loaders import Check, Contestant
from fastdata.errors import LoaderError

__all__ = ["Failed", "Watched"]

T = TypeVar("T")


class Failed(LoaderError):
    """A contestant drops out; the message says why."""


class Watched:
    """A contestant that has `limit` seconds for each answer, in addition to the seconds of the measurement.

    After that its processes are killed. This uses an alarm signal, so it works in the main thread only.
    """

    def __init__(self, contestant: Contestant, limit: float) -> None:
        self.name, self.kind, self.workers = contestant.name, contestant.kind, contestant.workers
        self._contestant = contestant
        self._limit = limit
        self._processes: set[Any] = set()  # of this contestant

    def start(self) -> float:
        return self._answer(self._contestant.start, 0.0)

    def measure(self, seconds: float) -> Run:
        return self._answer(lambda: self._contestant.measure(seconds), seconds)

    def check(self, seconds: float) -> Check:
        """Check the contestant. Wrong batches raise its LoaderError, not Failed."""
        return self._in_time(lambda: self._contestant.check(seconds), seconds)

    def close(self) -> None:
        self._in_time(self._contestant.close, 0.0)

    def _answer(self, ask: Callable[[], T], seconds: float) -> T:
        try:
            return self._in_time(ask, seconds)
        except Failed:
            raise
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}") from error

    def _in_time(self, ask: Callable[[], T], seconds: float) -> T:
        others = set(multiprocessing.active_children()) - self._processes
        limit = self._limit + seconds

        def end() -> None:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            raise Failed(f"no answer within {limit:g} s")

        try:
            with _alarm(limit, end):
                return ask()
        finally:
            self._processes = set(multiprocessing.active_children()) - others


@contextmanager
def _alarm(seconds: float, ring: Callable[[], object]) -> Iterator[None]:
    """Call `ring` in this thread after `seconds`, even while it waits, and again each second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: ring())
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
