"""CPU load of other programs, and the time for which this thread waited for a core."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from fastdata.bench.harness import tree_cpu_s
from fastdata.machine import available_cores

__all__ = ["OtherLoad", "queued_s"]

QUEUED = Path("/proc/thread-self/schedstat")


class OtherLoad:
    """Measures from its beginning how many cores other programs keep busy."""

    def __init__(self) -> None:
        self._before = _clock()

    def cores(self) -> float:
        """Return the cores that other programs kept busy, of those that this process may use."""
        (then, busy_then, own_then), (now, busy, own) = self._before, _clock()
        others = max((busy - busy_then) - (own - own_then), 0.0) / max(now - then, 1e-9)
        return max(0.0, others - (len(_our_cores()) - available_cores()))  # others may use the cores beyond a quota


def queued_s() -> float:
    """Return the seconds for which this thread was ready to run, but other threads had the cores; 0 if the kernel does not say."""
    try:
        return int(QUEUED.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _clock() -> tuple[float, float, float]:
    """Return the time, the seconds for which our cores were busy, and those of this process and its descendants."""
    idle = ("idle", "iowait", "guest", "guest_nice")  # user time includes a guest's
    busy = sum(sum(value for name, value in core._asdict().items() if name not in idle) for core in _our_cores())
    return time.monotonic(), busy, tree_cpu_s(ended=True)


def _our_cores() -> list[Any]:
    """Return the times of the cores on which this process may run."""
    cores = psutil.cpu_times(percpu=True)
    return [cores[k] for k in os.sched_getaffinity(0) if k < len(cores)] if hasattr(os, "sched_getaffinity") else cores
