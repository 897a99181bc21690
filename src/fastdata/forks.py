"""Forks of this process: what a child can't inherit is put away before each, whoever forks.

A child has none of its parent's threads, but all of its memory. If that holds OpenCV's pool of threads, the child's first
`cv2.setNumThreads(1)`, or 0, waits for ever for threads that it does not have. The usual `worker_init_fn` calls it, and so do
our own workers. So the pool ends before the fork; parent and child start another one when they need it, with as many threads.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

_state = threading.local()  # threads: of OpenCV, before the fork that this thread is about to make


def _end_pool() -> None:
    cv2 = _opencv()
    _state.threads = cv2.getNumThreads() if cv2 else 1
    if _state.threads > 1:
        cv2.setNumThreads(1)


def _allow_pool() -> None:
    if _state.threads > 1:
        _opencv().setNumThreads(_state.threads)


def _opencv() -> Any:
    """The module cv2; None where it is not imported, or only just being imported."""
    cv2 = sys.modules.get("cv2")
    return cv2 if hasattr(cv2, "setNumThreads") else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_pool, after_in_parent=_allow_pool, after_in_child=_allow_pool)
