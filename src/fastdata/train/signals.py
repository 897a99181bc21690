"""SIGTERM and Ctrl-C as requests to end. Most cluster schedulers send SIGTERM some seconds before they kill a job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C, raised once everything is saved. It ends a script without a traceback, with exit code 130."""

    code = 128 + signal.SIGINT


@contextmanager
def noted_signals(*, active: bool) -> Iterator[list[int]]:
    """If `active`, and in the main thread, only note the first SIGTERM or SIGINT, in the list; a second one acts as before."""
    received = list[int]()
    before = dict[signal.Signals, Any]()

    def note(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in HANDLED if active and threading.current_thread() is threading.main_thread() else ():
        before[number] = signal.getsignal(number) or signal.SIG_DFL  # None: a handler not set from Python
        if before[number] is not signal.SIG_IGN or number != signal.SIGINT:  # ignored in background jobs
            signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
