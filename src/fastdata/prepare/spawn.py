"""Worker processes that have no job yet: while their parent plans, they start Python and import what they need."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from socket import socketpair

from fastdata.system.children import start_python
from fastdata.system.machine import available_cores

__all__ = ["Spawned", "spares", "take"]

STATUS_BYTES = 64  # more than those of `fastdata.prepare.worker.STATUS`
MOST = 4  # spares: a small store may need no more, and the others start when the plan is known

_spares: list[Spawned] = []


class Spawned:
    """A worker process, with a pipe for its job and its tasks, and memory that it shares, for its status."""

    def __init__(self) -> None:
        ours, theirs = socketpair()
        status = tempfile.TemporaryFile()  # shared memory that needs no cleanup
        status.write(bytes(STATUS_BYTES))  # unlike truncate, this raises on a full disk; writing to the map would crash
        status.flush()
        self.memory = mmap.mmap(status.fileno(), STATUS_BYTES)
        alive, self._alive = connection.Pipe(duplex=False)  # the other end is closed when this process ends
        with theirs, alive, status:
            self.process = start_python("fastdata.prepare.worker:main", theirs.fileno(), status.fileno(), alive.fileno())
        self.pipe = connection.Connection(ours.detach())

    def end(self) -> int:
        """End the process, and return its exit code."""
        self.process.kill()  # has no effect if it is dead already
        code = self.process.wait()
        self.pipe.close()
        self._alive.close()
        return code


@contextmanager
def spares(count: int | None) -> Iterator[None]:
    """Start a few processes for `count` workers that are needed in this context (None: one for each core); end those left over."""
    cores = available_cores()
    with suppress(OSError):  # whoever needs a process will try again, and report it
        _spares.extend(Spawned() for _ in range(min(count or cores, max(1, cores - 1), MOST)))  # the parent takes a core
    try:
        yield
    finally:
        while _spares:
            _spares.pop().end()


def take() -> Spawned:
    """Return a spare process, or a new one."""
    return _spares.pop() if _spares else Spawned()
