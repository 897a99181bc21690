"""SIGTERM and Ctrl-C as requests to end. Most cluster schedulers send SIGTERM some seconds before they kill a job."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Interrupted", "Termination"]

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C, raised once everything is saved. It ends a script without a traceback, with exit code 130."""

    code = 128 + signal.SIGINT


class Termination:
    """A context that only notes the first SIGTERM or SIGINT; a second one acts as before. It works in the main thread only.

    Attributes:
        received: the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before = dict[signal.Signals, Any]()

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL  # None: a handler not set from Python
                if self._before[number] is not signal.SIG_IGN or number is not signal.SIGINT:  # ignored in background jobs
                    signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number)
        signal.signal(number, self._before[self.received])

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
