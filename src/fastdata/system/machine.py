"""The cores, the memory and the packages of this machine, with a container's limits."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from fastdata.errors import MachineError


def available_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: its affinity, or its group's CPU quota (cgroup 1 or 2) if less."""
    cores = len(os.sched_getaffinity(0))
    for quota, period in _of_groups(root, "cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        if quota not in ("max", "-1"):
            cores = max(1, min(cores, -(-int(quota) // int(period))))
    return cores


def free_memory(root: Path = Path("/")) -> int:
    """Return the free bytes: the machine's available memory, or less within the limits of its group (cgroup 1 or 2)."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    files = ("memory.max", "memory.current", "memory.stat"), ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    for limit, used, *stat in _of_groups(root, "memory", *files):
        if limit != "max":
            counts = dict(zip(stat[::2], stat[1::2], strict=True))
            pages = counts.get("inactive_file") or counts.get("total_inactive_file", "0")  # of files: used, but freed when needed
            found.append(int(limit) - int(used) + int(pages))
    return max(0, min(found))


@cache
def installed_versions() -> dict[str, str]:
    """Return the version of each installed package by its name, in lower case and with "-", from the names of their folders.

    importlib.metadata would read and parse files, and takes 20 ms to import.
    """
    found = dict[str, str]()
    for folder in map(Path, sys.path):
        with suppress(OSError):  # it is no folder, or is gone
            for path in folder.iterdir():
                package, _, version = path.stem.partition("-")
                if path.suffix in (".dist-info", ".egg-info") and version:
                    found.setdefault(re.sub("[-_.]+", "-", package).lower(), version.partition("-")[0])
    return found


@contextmanager
def room(need: int, share: int, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Ensure memory for a piece of work, in a process that shares the machine with others.

    Work that needs at most `share` bytes begins at once. Larger work is done by one of this user's processes
    at a time; `waiting` is called before a wait for the others.

    Raises:
        MachineError: even so, there is not enough memory.
    """
    if need <= share:
        yield
        return
    turn = os.open(Path(tempfile.gettempdir(), f"fastdata-memory-{os.getuid()}"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        waiting()
        fcntl.flock(turn, fcntl.LOCK_EX)  # the kernel frees it when the process ends, however that is
        if need > (free := free_memory()):
            raise MachineError(f"{need / 1e9:,.1f} GB of memory are needed, but {free / 1e9:,.1f} GB are free")
        yield
    finally:
        os.close(turn)


def _of_groups(root: Path, controller: str, *versions: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the words in the files of each control group of this process, in cgroup 2 or 1, where there are such files."""
    cgroup, own = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    folders = [cgroup, cgroup / controller]  # the root, which in most containers is its own, and those below
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):  # version 2, or this controller of version 1
            folder = cgroup / controller if controllers else cgroup
            for part in Path(path).parts[1:]:
                folder /= part
                folders.append(folder)
    for folder in folders:
        for files in versions:
            with suppress(OSError):
                yield " ".join((folder / file).read_text() for file in files).split()
