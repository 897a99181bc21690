"""Processes that hold one store in memory, for the loads and kills of memory once a machine."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import stores
from support import until
from test_node_memory import PATIENT, names

# A rank of its own: it opens a store, says which memory it has, and lives until it is told to end.
RANK = """
import hashlib, json, os, sys, time
from fastdata import RAMDataset
from fastdata.system import node_memory
from support import memory_of
path, options, slow = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
make = node_memory._make
def slowly(key, size, fill):
    print("loads", flush=True)
    def fill_slowly(memory):
        fill(memory)
        time.sleep(slow)
    return make(key, size, fill_slowly)
node_memory._make = slowly
dataset = RAMDataset(path, **options)
memory = memory_of(dataset)
print("has", hashlib.sha256(memory.tobytes()).hexdigest(), flush=True)
for line in sys.stdin:
    print("still", hashlib.sha256(memory.tobytes()).hexdigest(), flush=True)
"""


class Rank:
    """A process that holds a store. slow: seconds that it takes longer to load it."""

    def __init__(self, path: Path, options: dict[str, Any] | None = None, slow: float = 0.0) -> None:
        paths = filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
        command = [sys.executable, "-W", "error", "-c", RANK, str(path), json.dumps(options or {}), str(slow)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        self.pid = self.process.pid
        self.said: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.split())

    def sum(self) -> str:
        """Wait until it has the memory, and return the checksum of it."""
        found = until(lambda: [s for s in self.said if s[0] == "has"] or self.process.poll() is not None, PATIENT)
        assert found is not True, self.process.stderr and self.process.stderr.read()
        return str(found[0][1])

    def inode(self) -> int:
        """The memory that it maps."""
        (found,) = {int(line.split()[4]) for line in self._maps() if "/memfd:fastdata-" in line}
        return found

    def _maps(self) -> list[str]:
        return Path(f"/proc/{self.pid}/maps").read_text().splitlines()

    def still(self) -> str:
        """Let it read its memory again."""
        assert self.process.stdin is not None
        before = len(self.said)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        until(lambda: len(self.said) > before, PATIENT)
        return self.said[-1][1]

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()
            self._reader.join()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                with suppress(BrokenPipeError):
                    assert stream is not None
                    stream.close()


@contextmanager
def ranks() -> Iterator[Any]:
    """Yield what starts ranks, all of which end in the end; then nothing of theirs may be left."""
    started: list[Rank] = []

    def start(*arguments: Any, **options: Any) -> Rank:
        started.append(Rank(*arguments, **options))
        return started[-1]

    try:
        yield start
    finally:
        for rank in started:
            rank.kill()
        pids = {rank.pid for rank in started}
        until(lambda: not {pid for _, pid in names()} & pids)
    assert not [path.name for path in Path("/dev/shm").iterdir() if "fastdata" in path.name]


def stored_sum(path: Path) -> str:
    """The checksum of all records of a store of rgb, one after the other, read without the datasets."""

    return hashlib.sha256(b"".join(image.tobytes() for image in stores.whole(path))).hexdigest()
