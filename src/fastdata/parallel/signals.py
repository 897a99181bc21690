"""SIGTERM as a request: most schedulers of clusters send it some seconds before they kill."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Termination"]


class Termination:
    """A context in which the first SIGTERM only sets `asked`, and a second acts as before. In the main thread; else no effect."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL  # None: not from Python
            signal.signal(signal.SIGTERM, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGTERM, self._before)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
