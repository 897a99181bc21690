"""Supervises worker processes: hands out shards, sees progress, and survives a worker that dies or hangs.

Workers are plain subprocesses, so a script needs no `if __name__ == "__main__"`, and nothing of the caller's state is forked.
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
STRIKES = 2  # an input that was being decoded when so many workers died is left out: once may be chance, such as the OOM killer
CODE = "import sys; from fastdata.prepare.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"

Report = Callable[[int, int, int], None]
Roots = tuple[Path, Path]


class _Worker:
    """One process, the task it has, and when its place in the task last changed."""

    def __init__(self, job: Job) -> None:
        ours, theirs = socketpair()
        self._status = tempfile.TemporaryFile()  # shared memory that needs no cleaning up
        self._status.write(bytes(STATUS.itemsize))  # not truncate: a full disk shall say so here, not kill who writes to the map
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
        self._place, self._since = -1, 0.0
        self._send(job)

    def _send(self, item: Job | Task) -> None:
        with contextlib.suppress(ConnectionError):  # it died: that is seen where its answer is awaited
            self.pipe.send(item)

    def give(self, task: Task) -> None:
        self.before = self.progress.copy()  # what stands if this task comes to nothing
        self.task, self._place = task, -1
        self._send(task)

    @property
    def place(self) -> int:
        return int(self.progress["place"][0])

    def stuck_s(self) -> float:
        """Seconds at the same input."""
        if self.task is None or self.place != self._place:
            self._place, self._since = self.place, time.monotonic()
        return time.monotonic() - self._since if self.place >= 0 else 0.0

    def stop(self) -> str:
        """End the process, and say how it ended."""
        self.process.kill()  # does nothing to one that is dead already
        code = self.process.wait()
        self.pipe.close()
        self._status.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _Pool:
    """The workers of a run, the shards still to do, and what each input has done to its worker."""

    def __init__(self, plan: Plan, roots: Roots, out: Path, shards: list[int], workers: int, timeout_s: float) -> None:
        self.job = Job(str(roots[0]), str(roots[1]), str(out), plan.options, plan.fingerprint, plan.shared)
        self.todo = [Task(k, plan.bounds[k], plan.shard(k), {}) for k in reversed(shards)]
        self.timeout_s = timeout_s
        self.strikes: Counter[tuple[int, int]] = Counter()
        self.retired = np.zeros(1, STATUS)
        self.count = min(workers, len(shards))
        self.workers: list[_Worker] = []

    def start(self) -> None:
        for _ in range(self.count):
            self.workers.append(_Worker(self.job))

    def busy(self) -> bool:
        return bool(self.todo) or any(w.task for w in self.workers)

    def step(self) -> None:
        """Hand out work, wait for an answer or a tick, and replace workers that died or hang."""
        for worker in self.workers:
            if worker.task is None and self.todo:
                worker.give(self.todo.pop())
        connection.wait([w.pipe for w in self.workers if w.task], timeout=TICK_S)
        for k, worker in enumerate(self.workers):
            hung = worker.stuck_s() > self.timeout_s + int(worker.progress["extra_s"][0])
            if worker.task and (hung or not _listen(worker)):
                self._retire(worker, hung)
                self.workers[k] = _Worker(self.job)

    def _retire(self, worker: _Worker, hung: bool) -> None:
        """Its shard is redone from zero; an input that has cost STRIKES workers is left out."""
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
    """Hold Ctrl-C back while a process starts. The child inherits that, so a worker never sees one, not even while it imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(worker: _Worker) -> bool:
    """Take a worker's answer if there is one. False: it died."""
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
    """Make the given shards of a plan. `roots`: the folders of its images and masks.

    `report(done, rejected, bytes)` gets the sums of this run, at least ten times a second.

    Raises:
        StoreError: a worker could not go on for a reason that is not one input's (a full disk, say).
        PrepError: workers die before they begin.
    """
    pool = _Pool(plan, roots, out, shards, workers, timeout_s)
    try:
        pool.start()
        while pool.busy():
            pool.step()
            report(pool.total("done"), pool.total("rejected"), pool.total("bytes"))
    finally:
        pool.stop()
