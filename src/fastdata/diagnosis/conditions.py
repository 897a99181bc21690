"""What this machine has for a run: free cores, next to other programs, memory and /dev/shm."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastdata.bench.harness import tree_cpu_s
from fastdata.machine import available_cores, free_memory, free_shared_memory

__all__ = ["Conditions", "OtherLoad", "look", "queued_s"]

PRESSURE = Path("/proc/pressure/cpu")
QUEUED = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True)
class Conditions:
    """The machine, as this process may use it.

    Attributes:
        cores: its cores, by its affinity and its group's quota.
        others: how many of these other programs kept busy.
        pressure: the share of the last ten seconds in which some process waited for a core (the kernel's PSI); None: unknown.
        memory: free bytes.
        shm: free bytes in /dev/shm, where torch's workers put their batches; None: there is none.
    """

    cores: int
    others: float = 0.0
    pressure: float | None = None
    memory: int = 1 << 62
    shm: int | None = None

    @property
    def free(self) -> float:
        """The cores that other programs leave."""
        return max(self.cores - self.others, 0.0)

    def cores_for(self, threads: float) -> float:
        """Return how many cores so many busy threads get. The kernel shares them evenly with the threads of others."""
        if threads + self.others <= self.cores:
            return threads
        return min(threads, max(self.cores - self.others, self.cores * threads / (threads + self.others)))


class OtherLoad:
    """Measures from its beginning how many cores other programs keep busy."""

    def __init__(self) -> None:
        self._before = _clock()

    def cores(self) -> float:
        """Return the cores that other programs kept busy, of those that this process may use."""
        (then, busy_then, own_then), (now, busy, own) = self._before, _clock()
        others = max((busy - busy_then) - (own - own_then), 0.0) / max(now - then, 1e-9)
        return max(0.0, others - (_affinity_count() - available_cores()))  # others may use the cores beyond a quota


def look(seconds: float) -> Conditions:
    """Watch the machine for some seconds, in which this process does nothing."""
    load = OtherLoad()
    time.sleep(seconds)
    others = load.cores()
    others = 0.0 if others < 0.05 else others  # no machine is quite idle
    return Conditions(available_cores(), others, _pressure(), free_memory(), free_shared_memory())


def queued_s() -> float:
    """Return the seconds for which this thread was ready to run, but other threads had the cores; 0 if the kernel does not say."""
    try:
        return int(QUEUED.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _clock() -> tuple[float, float, float]:
    """Return the time, the seconds for which our cores were busy, and those of this process and its descendants."""
    cpus = psutil.cpu_times(percpu=True)
    ours = [cpus[k] for k in os.sched_getaffinity(0) if k < len(cpus)] if hasattr(os, "sched_getaffinity") else cpus
    idle = ("idle", "iowait", "guest", "guest_nice")  # user time includes a guest's
    busy = sum(sum(value for name, value in cpu._asdict().items() if name not in idle) for cpu in ours)
    return time.monotonic(), busy, tree_cpu_s(ended=True)


def _affinity_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pressure() -> float | None:
    try:
        some = PRESSURE.read_text().split("\n")[0]
        return float(some.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return None
