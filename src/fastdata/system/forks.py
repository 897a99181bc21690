"""Ends OpenCV's thread pool before each fork of this process.

A child has its parent's memory, but not its threads. If OpenCV's pool exists, the child's first `cv2.setNumThreads(1)`, or 0, waits
for ever for threads that it does not have. The usual `worker_init_fn` calls it, and so do fastdata's workers. Parent and child
start a new pool with as many threads when they need one.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

_state = threading.local()  # .threads: OpenCV's number of threads before this thread's fork


def _end_pool() -> None:
    cv2 = _opencv()
    _state.threads = cv2.getNumThreads() if cv2 else 1
    if _state.threads > 1:
        cv2.setNumThreads(1)


def _allow_pool() -> None:
    if _state.threads > 1:
        _opencv().setNumThreads(_state.threads)


def _opencv() -> Any:
    """Return the module cv2, or None if it is not, or not completely, imported."""
    cv2 = sys.modules.get("cv2")
    return cv2 if hasattr(cv2, "setNumThreads") else None


os.register_at_fork(before=_end_pool, after_in_parent=_allow_pool, after_in_child=_allow_pool)
