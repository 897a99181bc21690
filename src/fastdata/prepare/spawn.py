"""Worker processes. While their parent plans, some start Python and import what they need, without a job yet."""

from __future__ import annotations

import mmap
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from socket import socketpair
from typing import Any

from fastdata.system.children import start_python
from fastdata.system.machine import available_cores

# What the status of a worker has, as int64: its position in its shard (-1: none), its sums so far, seconds beyond the timeout
POSITION, DONE, REJECTED, EXTRA_S = range(4)
STATUS_BYTES = 32
MAX_SPARES = 4  # a small store may need no more, and the others start when the plan is known

_spares: list[Worker] = []


class Worker:
    """A worker process, a pipe for its job and its tasks, its current task, and its status, which lies in shared memory."""

    def __init__(self) -> None:
        ours, theirs = socketpair()
        status = tempfile.TemporaryFile()  # shared memory that needs no cleanup
        status.write(bytes(STATUS_BYTES))  # unlike truncate, this raises on a full disk; writing to the map would crash
        status.flush()
        self.status = memoryview(mmap.mmap(status.fileno(), STATUS_BYTES)).cast("q")
        self.status[POSITION] = -1
        alive, self._alive = connection.Pipe(duplex=False)  # the other end is closed when this process ends
        with theirs, alive, status:
            self.process = start_python("fastdata.prepare.worker:main", theirs.fileno(), status.fileno(), alive.fileno())
        self.pipe = connection.Connection(ours.detach())
        self.task: Any = None
        self._position, self._stuck_s = -1, 0.0

    def send(self, item: Any) -> None:
        with suppress(ConnectionError):  # it died, which whoever receives notices
            self.pipe.send(item)

    def start(self, task: Any) -> None:
        self.task, self._position = task, -1
        self.send(task)

    def stuck_s(self, passed_s: float) -> float:
        """Return the worker's seconds at its current input. passed_s: the seconds since the last call."""
        position = self.status[POSITION]
        if self.task is None or position < 0 or position != self._position:
            self._position, self._stuck_s = position, -passed_s
        self._stuck_s += passed_s
        return self._stuck_s

    def end(self) -> str:
        """End the process, and return how it ended."""
        self.process.kill()  # has no effect if it is dead already
        code = self.process.wait()
        self.pipe.close()
        self._alive.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def preload(kind: str) -> None:
    """Have the spare processes import the modules that make shards of a kind of data, while their parent plans."""
    for worker in _spares:
        worker.send(kind)


@contextmanager
def spares(count: int | None) -> Iterator[None]:
    """Start a few processes for `count` workers of this context, by default one for each core; end unused processes."""
    cores = available_cores()
    with suppress(OSError):  # whoever needs a process will try again, and report it
        _spares.extend(Worker() for _ in range(min(count or cores, max(1, cores - 1), MAX_SPARES)))  # the parent takes a core
    try:
        yield
    finally:
        while _spares:
            _spares.pop().end()


def take() -> Worker:
    """Return a spare process, or a new one."""
    return _spares.pop() if _spares else Worker()
