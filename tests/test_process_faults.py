"""Faults of processes and of the operating system: what dies takes its children along, what is missing is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stores import store
from support import kill_group, members, start, until

LOADING = """
import multiprocessing, sys
import fastdata

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    dataset = fastdata.RAMDataset(sys.argv[1], crop=fastdata.RandomResizedCrop(32))
    loader = fastdata.Loader(dataset, 4, num_workers=2, shuffle=True)
    while True:
        for k, batch in enumerate(loader):
            if k == 4:
                print("both workers are at work", flush=True)
"""


def _held(pid: int) -> set[tuple[int, int]]:
    """The memory without a name that a process has open, by device and inode."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(path.readlink()).startswith("/memfd:"):
                found.add((path.stat().st_dev, path.stat().st_ino))
        except OSError:
            continue
    return found


def _named(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has mapped, such as semaphores: they have other names there than when they were made."""
    mapped = re.findall(r" (\d+) +/dev/shm/", Path(f"/proc/{pid}/maps").read_text())
    with os.scandir("/dev/shm") as files:
        return {Path(file.path) for file in files if str(file.inode()) in mapped}


def _holders(memory: set[tuple[int, int]]) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            if memory & _held(int(pid)):
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number"),
    [("fork", signal.SIGKILL), ("spawn", signal.SIGKILL), ("forkserver", signal.SIGKILL), ("forkserver", signal.SIGHUP)],
)
def test_nothing_is_left_when_the_process_of_a_loader_is_killed(tmp_path: Path, method: str, number: signal.Signals) -> None:
    """Also not a worker that is stopped, as by a debugger or a batch system."""
    script = tmp_path / "loading.py"
    script.write_text(LOADING)
    process = start(sys.executable, script, store(), method, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == b"both workers are at work\n"
            group = members(process.pid)
            assert len(group) >= {"fork": 3, "spawn": 4, "forkserver": 5}[method]
            memory, names = _held(process.pid), _named(process.pid)
            workers = [pid for pid in group if pid != process.pid and memory & _held(pid)]
            assert len(workers) == 2
            assert bool(names) == (method != "fork")
            os.kill(workers[0], signal.SIGSTOP)
            os.kill(process.pid, number)
            assert process.wait() == -number
            until(lambda: not members(process.pid), seconds=5)
            assert not _holders(memory)
            assert not [name for name in names if name.exists()]
        finally:
            kill_group(process)
