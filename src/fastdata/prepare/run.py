"""Supervise worker processes: hand out shards, publish them, collect progress, and replace workers that die or hang.

Workers are plain subprocesses, so a script needs no `if __name__ == "__main__"`, and no state of the caller is forked.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import connection

from fastdata.errors import PrepError, StoreError
from fastdata.prepare.plan import PrepareRun
from fastdata.prepare.spawn import DONE, EXTRA_S, POSITION, REJECTED, Worker, take
from fastdata.prepare.worker import ShardTask, publish_shard
from fastdata.store.files import WORK, unique
from fastdata.system.machine import available_cores, free_memory

TICK_S = 0.1
LONGEST_TICK_S = 1.0
STRIKES = 2  # workers that an input may cost before it is left out: one may die by chance, such as from the OOM killer

BACKLOG = 2  # finished shards for each worker that may wait to be published, before no new one is begun

Report = Callable[[int, int], None]  # takes the sums of a run: work done, inputs rejected


def for_workers(work: PrepareRun, workers: int) -> PrepareRun:
    """Return the configuration for a number of workers, without the list of inputs."""
    share = free_memory() // (2 * workers)  # the other half is for one large input at a time
    return replace(work, plan=replace(work.plan, sources=(), bounds=(), amounts=()), mark=unique(), share=share)


class _Pool:
    """The workers of a run.

    A thread publishes shards: flushing one to disk takes a while, in which its worker makes the next one.
    """

    def __init__(self, work: PrepareRun, *, workers: int, timeout_s: float) -> None:
        self._work = work
        self._job = for_workers(work, workers)
        self._count = workers
        self._timeout_s = timeout_s
        self._todo: deque[int] = deque()
        self._crashes = 0  # of workers that had not begun an input
        self._strikes = Counter[tuple[int, int]]()  # how many workers an input, by shard and position, has cost
        self._skip: dict[int, dict[int, tuple[str, str]]] = {}  # the inputs that are left out, by shard and position
        self._retired = Counter[int]()  # the sums of workers that ended
        self._workers: list[Worker] = []
        self._publisher = ThreadPoolExecutor(1, "publish")
        self._published: list[Future[None]] = []
        self._ticked = time.monotonic()

    def run(self, shards: Sequence[int], report: Report) -> None:
        """Make some shards of the plan, and publish them. At the end, no worker and no temporary file is left."""
        self._todo.extend(shards)
        try:
            self._workers += [self._begun() for _ in range(min(self._count, len(shards)))]
            while self._todo or self._published or any(worker.task for worker in self._workers):
                self._step()
                report(self._total(DONE), self._total(REJECTED))
        finally:
            for worker in self._workers:
                worker.process.kill()  # all at once: each takes a while to give back its memory
            self._publisher.shutdown(cancel_futures=True)
            for worker in self._workers:
                worker.end()
            for temporary in (self._work.out / WORK).glob(f"*.{self._job.mark}-*.tmp"):
                temporary.unlink(missing_ok=True)

    def _begun(self) -> Worker:
        worker = take()
        worker.send(self._job)
        return worker

    def _step(self) -> None:
        """Hand out tasks, wait for an answer or a tick, and replace workers that died or hang."""
        for future in [future for future in self._published if future.done()]:
            self._published.remove(future)
            future.result()
        for worker in self._workers:
            if worker.task is None and self._todo and len(self._published) < BACKLOG * self._count:
                shard, plan = self._todo.popleft(), self._work.plan
                worker.start(ShardTask(shard, plan.bounds[shard], plan.shard(shard), self._skip.get(shard, {})))
        busy = [worker.pipe for worker in self._workers if worker.task]
        if busy:
            connection.wait(busy, timeout=TICK_S)
        elif self._published:
            futures.wait(self._published, timeout=TICK_S, return_when=futures.FIRST_COMPLETED)
        before, self._ticked = self._ticked, time.monotonic()
        passed_s = min(self._ticked - before, LONGEST_TICK_S)  # a job that was suspended has not hung
        for k, worker in enumerate(self._workers):
            hung = worker.stuck_s(passed_s) > self._timeout_s + worker.status[EXTRA_S]
            if worker.task and (hung or not self._receive(worker)):
                self._retire(worker, hung)
                self._workers[k] = self._begun()

    def _receive(self, worker: Worker) -> bool:
        """Receive a worker's answer if there is one. Return False if the worker died."""
        try:
            if worker.pipe.poll():
                kind, value = worker.pipe.recv()
                if kind == "failed":
                    raise StoreError(f"a worker could not go on: {value}\nWhat is finished is kept; run the same command again.")
                self._published.append(self._publisher.submit(publish_shard, self._work.out, worker.task.shard, *value))
                worker.task = None
        except (EOFError, ConnectionError):
            return False
        return True

    def _retire(self, worker: Worker, hung: bool) -> None:
        """Queue the worker's shard again from its start. Leave out an input that has cost STRIKES workers."""
        task, position, end = worker.task, worker.status[POSITION], worker.end()
        for number in (DONE, REJECTED):
            self._retired[number] += worker.status[number]
        if position < 0:
            self._crashes += 1
            if self._crashes > STRIKES:
                raise PrepError(f"worker processes die before they begin an input ({end}); try --workers 1 and see what they print")
        else:
            reason = ("timeout", "decoding it does not end") if hung else ("crashed", f"its decoder took the process down ({end})")
            self._strikes[task.shard, position] += 1
            if self._strikes[task.shard, position] == STRIKES:
                self._skip.setdefault(task.shard, {})[position] = reason
        self._todo.appendleft(task.shard)

    def _total(self, number: int) -> int:
        return self._retired[number] + sum(worker.status[number] for worker in self._workers)


def run_shards(shards: Sequence[int], report: Report, *, work: PrepareRun, workers: int | None, timeout_s: float) -> None:
    """Make some shards of a plan on this machine.

    Args:
        report: called at least ten times a second.
        workers: number of processes, or None for one for each core.
        timeout_s: seconds after which an input is considered to hang its decoder.
    """
    _Pool(work, workers=workers or available_cores(), timeout_s=timeout_s).run(shards, report)
