"""SIGTERM and Ctrl-C as requests: most schedulers of clusters send the first some seconds before they kill."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

__all__ = ["Interrupted", "Termination", "interruption"]

ASKING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C, after all is saved: it ends a script without a traceback, with exit code 130."""

    code = 128 + signal.SIGINT


class Termination:
    """A context in which the first SIGTERM or SIGINT is only noted, and a second acts as before. It works in the main thread only.

    Attributes:
        asked: the signal that asks for the end, or None.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before = dict[signal.Signals, Any]()

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL  # None: not from Python
                if self._before[number] is not signal.SIG_IGN or number is not signal.SIGINT:  # nohup, or a job in the background
                    signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = signal.Signals(number)
        signal.signal(number, self._before[self.asked])

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def interruption() -> KeyboardInterrupt:
    """What ends a script quietly, but leaves an interactive session to its user."""
    return KeyboardInterrupt() if hasattr(sys, "ps1") else Interrupted()
