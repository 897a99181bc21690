"""Supervise worker processes: hand out shards, collect progress, and replace workers that die or hang.

Workers are plain subprocesses, so a script needs no `if __name__ == "__main__"`, and no state of the caller is forked.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from socket import socketpair
from typing import Any

import numpy as np

from fastdata.errors import PrepError, StoreError
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import STATUS, Job, Task

__all__ = ["run_shards"]

TICK_S = 0.1
STRIKES = 2  # workers that an input may cost before it is left out: one may die by chance, such as from the OOM killer
CODE = "import sys; from fastdata.prepare.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"

Report = Callable[[int, int, int], None]
Roots = tuple[Path, ...]  # of the inputs, of their masks, and of each further image of an input


class _Worker:
    """A worker process, its task, and when its place in the task last changed."""

    def __init__(self, job: Job) -> None:
        ours, theirs = socketpair()
        self._status = tempfile.TemporaryFile()  # shared memory that needs no cleanup
        self._status.write(bytes(STATUS.itemsize))  # unlike truncate, this raises on a full disk; writing to the map would crash
        self._status.flush()
        self.progress: Any = np.frombuffer(mmap.mmap(self._status.fileno(), STATUS.itemsize), STATUS)
        self.progress["place"] = -1
        with theirs, _uninterrupted():
            descriptors = theirs.fileno(), self._status.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self.pipe = connection.Connection(ours.detach())
        self.task: Task | None = None
        self._place = -1
        self._since = 0.0
        self._send(job)

    def _send(self, item: Job | Task) -> None:
        with contextlib.suppress(ConnectionError):  # it died, which `_receive` notices
            self.pipe.send(item)

    def start(self, task: Task) -> None:
        self.before = self.progress.copy()  # the sums that remain valid if this task fails
        self.task = task
        self._place = -1
        self._send(task)

    @property
    def place(self) -> int:
        return int(self.progress["place"][0])

    def stuck_s(self) -> float:
        """Return the seconds since the worker began its current input."""
        if self.task is None or self.place != self._place:
            self._place = self.place
            self._since = time.monotonic()
        return time.monotonic() - self._since if self.place >= 0 else 0.0

    def stop(self) -> str:
        """End the process and return how it ended."""
        self.process.kill()  # has no effect if it is dead already
        code = self.process.wait()
        self.pipe.close()
        self._status.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _Pool:
    """The workers of a run, the remaining shards, and how many workers each input has cost."""

    def __init__(self, plan: Plan, roots: Roots, out: Path, shards: list[int], timeout_s: float) -> None:
        root, masks, *others = map(str, roots)
        self.job = Job(root, masks, str(out), plan.options, plan.fingerprint, plan.shared, plan.columns, plan.parts, tuple(others))
        self.todo = [Task(k, plan.bounds[k], plan.shard(k), {}) for k in reversed(shards)]
        self.timeout_s = timeout_s
        self.strikes: Counter[tuple[int, int]] = Counter()
        self.retired = np.zeros(1, STATUS)  # the sums of workers that ended
        self.workers: list[_Worker] = []

    def start(self, workers: int) -> None:
        for _ in range(min(workers, len(self.todo))):
            self.workers.append(_Worker(self.job))

    def busy(self) -> bool:
        return bool(self.todo) or any(w.task for w in self.workers)

    def step(self) -> None:
        """Hand out tasks, wait for an answer or a tick, and replace workers that died or hang."""
        for worker in self.workers:
            if worker.task is None and self.todo:
                worker.start(self.todo.pop())
        connection.wait([w.pipe for w in self.workers if w.task], timeout=TICK_S)
        for k, worker in enumerate(self.workers):
            hung = worker.stuck_s() > self.timeout_s + int(worker.progress["extra_s"][0])
            if worker.task and (hung or not _receive(worker)):
                self._retire(worker, hung)
                self.workers[k] = _Worker(self.job)

    def _retire(self, worker: _Worker, hung: bool) -> None:
        """Queue the worker's shard again from its start. Leave out an input that has cost STRIKES workers."""
        task, place = worker.task, worker.place
        assert task is not None
        end = worker.stop()
        for name in STATUS.names or ():
            self.retired[name] += worker.before[name]
        suspect = (task.shard, place) if place >= 0 else (-1, -1)
        self.strikes[suspect] += 1
        if place < 0 and self.strikes[suspect] > STRIKES:
            raise PrepError(f"worker processes die before they begin ({end}); try --workers 1 and look at what they print")
        if place >= 0 and self.strikes[suspect] >= STRIKES:
            reason = ("timeout", "decoding it does not end") if hung else ("crashed", f"its decoder took the process down ({end})")
            task = replace(task, skip={**task.skip, place: reason})
        self.todo.append(task)

    def total(self, name: str) -> int:
        return int(self.retired[name][0] + sum(w.progress[name][0] for w in self.workers))

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C while a process starts. The child inherits the mask, so no worker is interrupted, even while it imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(worker: _Worker) -> bool:
    """Receive a worker's answer if there is one. Return False if the worker died."""
    try:
        if worker.pipe.poll():
            kind, value = worker.pipe.recv()
            if kind == "failed":
                raise StoreError(f"a worker could not go on: {value}\nWhat is finished is kept; run the same command again.")
            worker.task = None
    except (EOFError, ConnectionError):
        return False
    return True


def run_shards(plan: Plan, roots: Roots, out: Path, shards: list[int], *, workers: int, timeout_s: float, report: Report) -> None:
    """Make some shards of a plan.

    Args:
        roots: the folders of the inputs, of their masks, and of each further image of an input.
        report: called at least ten times a second with the sums of this run: work done, inputs rejected, bytes read.

    Raises:
        StoreError: a worker failed for a reason other than an input, such as a full disk.
        PrepError: workers die before they begin.
    """
    pool = _Pool(plan, roots, out, shards, timeout_s)
    try:
        pool.start(workers)
        while pool.busy():
            pool.step()
            report(pool.total("done"), pool.total("rejected"), pool.total("bytes"))
    finally:
        pool.stop()
