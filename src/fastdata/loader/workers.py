"""Worker processes: torch's DataLoader over an endless list of requests, and the slots that it fills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import forkserver, util
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.data.dataset import SlotDataset
from fastdata.errors import LoaderError, lacking, warn_user
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Fetch, Reply, Request, as_is, quiet_worker, ready_to_fork
from fastdata.loader.requests import Requests
from fastdata.loader.slots import ALIGN, HELD, Slots
from fastdata.system.children import end_with_parent
from fastdata.system.machine import is_stopped
from fastdata.system.shared_memory import SharedArray
from fastdata.system.torch_private import arrived, default_device, end_workers, is_timeout, kill_workers, workers_of

__all__ = ["Workers", "begin_worker", "start_server", "why_died"]

PRELOAD = ["__main__", "fastdata.loader.preload"]
FEWER = "if memory ran out, use fewer workers"
GUARD = 'where {} starts workers, a script needs `if __name__ == "__main__":` around what starts its loaders'


def why_died() -> str:
    """Return what may have ended a worker, and what to do."""
    method = multiprocessing.get_start_method()
    return FEWER if method == "fork" else f"{FEWER}; {GUARD.format(method)}"


def start_server() -> None:
    """Start the fork server if it is to start the workers: it imports torch, which takes a second, while this process goes on.

    An error is left to the first batch, which meets it again. There is one where this process is itself a child that is importing
    a script, and may start none.
    """
    if multiprocessing.parent_process() is None and sys.modules["__mp_main__"].__name__ == "__mp_main__":
        return  # this is the fork server, importing the script
    chosen = multiprocessing.get_start_method(allow_none=True)  # without this argument, the program could choose none later
    if (chosen or multiprocessing.get_all_start_methods()[0]) == "forkserver":  # the default comes first
        forkserver.set_forkserver_preload(PRELOAD)  # no effect on a running server
        with suppress(RuntimeError, OSError):
            forkserver.ensure_running()


def _on_cpu() -> AbstractContextManager[Any]:
    """Set torch's default device to the CPU: DataLoader makes small tensors there, and it may be a GPU."""
    return nullcontext() if default_device().type == "cpu" else torch.device("cpu")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until a fork is done: before, a hook of Python could lose it, or it could end a worker or leave one running."""
    handler = signal.getsignal(signal.SIGINT)
    received = list[int]()
    if not callable(handler) or threading.current_thread() is not threading.main_thread():  # no handler runs here
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if received:
        signal.raise_signal(signal.SIGINT)


START_S = 30.0  # a forked worker starts within milliseconds
CHECK_S = 5.0  # between two looks at workers that do not answer, as in torch's DataLoader
PATIENCE_S = 30.0  # for a batch, before the user is told what the workers do


class WorkerInit:
    """Runs first in a worker: it reports that the worker has started, and leaves a job's signals to the parent.

    A lock of the interpreter or of a library that another thread holds during a fork stays locked in the child for ever.
    Python 3.11 itself may wait for such a lock before it runs the child's first line, for instance if there are threads of gloo.

    Attributes:
        started: 1 for each worker that has started.
        supervised: 1 while the parent ensures that the workers end. Before and after that SIGTERM ends them: multiprocessing sends
            it when the parent ends, and then waits for them without a limit.
    """

    def __init__(self, workers: int) -> None:
        self.started = SharedArray(workers)
        self.supervised = SharedArray(1)

    def __call__(self, worker: int) -> None:
        self.started.array[worker] = 1
        begin_worker(worker)
        signal.signal(signal.SIGTERM, self._on_sigterm)  # not SIG_IGN, which programs started by a transform would inherit

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Ignore SIGTERM while supervised: schedulers send it to all processes of a job, and a parent that saves needs batches."""
        if not self.supervised.array[0]:
            os._exit(0)


def begin_worker(worker: int) -> None:
    """Ignore Ctrl-C, which all processes of a terminal receive: the parent handles it. End with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    quiet_worker(worker)


_killing_at_exit = set[int]()  # processes that have the finalizer
_running = weakref.WeakKeyDictionary[Any, tuple[int, WorkerInit | None]]()  # torch's iterator -> the process that owns its workers


def _release(batches: Any) -> bool:
    """Let SIGTERM end the workers of an iterator. Return whether this process owns them and has not ended them yet."""
    owner, init = _running.pop(batches, (0, None))
    if owner == os.getpid() and init is not None:
        init.supervised.array[0] = 0
    return owner == os.getpid()


def _end(batches: Any) -> None:
    if _release(batches):
        try:
            end_workers(batches)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            kill_workers(batches)  # one was killed meanwhile, of which torch's handler of SIGCHLD tells


def _kill(batches: Any) -> None:
    if _release(batches):
        kill_workers(batches)


def _kill_all() -> None:
    for batches in list(_running):
        _kill(batches)


def _kill_at_exit() -> None:
    """Kill the workers at the end of this process, before multiprocessing sends them SIGTERM and waits for them.

    Processes started by multiprocessing run such finalizers, but no function of atexit.
    """
    if os.getpid() not in _killing_at_exit:
        _killing_at_exit.add(os.getpid())
        util.Finalize(None, _kill_all, exitpriority=1)


def _what_they_do(workers: Sequence[Any]) -> str:
    """Say why workers may not answer, and what to do."""
    if stopped := [str(worker.pid) for worker in workers if is_stopped(worker.pid)]:
        return f"worker {', '.join(stopped)} was stopped (SIGSTOP); kill -CONT {' '.join(stopped)} lets it go on"
    pids = ", ".join(str(worker.pid) for worker in workers)
    return f"the workers ({pids}) make it, or wait for storage or for a lock; py-spy dump --pid {workers[0].pid} shows where"


class Workers(Engine):
    """Worker processes, until an error or `close` ends them.

    Args:
        dataset: the dataset to read; images travel in slots, items of other datasets as torch's DataLoader sends them.
        requests: the requests, in order.
        rows: the most samples of a batch.
        num_workers: processes; 0: batches are made when they are received.
        prefetch_factor: batches that each worker makes ahead.
        pin_memory: page-lock the batches, if there is a GPU.
        device: where the loader copies the batches.
        ahead: batches that it copies ahead of the consumer.
        collate: makes batches of the items of other datasets; None: torch's default_collate.
    """

    def __init__(
        self,
        dataset: Any,
        requests: Requests,
        rows: int,
        num_workers: int,
        prefetch_factor: int,
        *,
        pin_memory: bool,
        device: torch.device | None,
        ahead: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._raised: BaseException | None = None
        self._told = False  # that a batch does not come
        self._dataset = dataset
        if num_workers and multiprocessing.current_process().daemon:
            raise LoaderError("this process is daemonic, and may have no workers: give num_workers=0, or daemon=False to it")
        method = multiprocessing.get_start_method() if num_workers else ""
        self._forked = method == "fork"
        self._init = WorkerInit(num_workers) if num_workers and SharedArray.possible() else None
        if num_workers:
            start_server()
        if isinstance(dataset, SlotDataset) and SharedArray.possible():
            size = rows * requests.sizes.largest(dataset) + ALIGN * (dataset.arrays_per_batch - 1)
            self.slots = Slots(max(1, num_workers * prefetch_factor), size, held=HELD + ahead)
        self._pin = pin_memory and self._device is None and torch.cuda.is_available()
        requests.slots = self.slots
        requests.fill()  # raise a sampler's error before there are workers
        loader = DataLoader(
            Fetch(dataset, self.slots.place if self.slots else None, collate),
            batch_sampler=requests,  # type: ignore[arg-type]  # whole requests, not lists of indices
            num_workers=num_workers,
            collate_fn=as_is,
            pin_memory=pin_memory and self.slots is None,
            prefetch_factor=prefetch_factor if num_workers else None,
            timeout=CHECK_S if num_workers else 0,
            worker_init_fn=self._init or begin_worker,
            generator=torch.Generator(),  # leaves torch's default generator unchanged
        )
        before = multiprocessing.active_children()
        try:
            with ready_to_fork(), _on_cpu(), _uninterrupted():
                batches: Any = iter(loader)
                if num_workers:
                    _kill_at_exit()
                    _running[batches] = os.getpid(), self._init
        except (OSError, EOFError) as error:
            for worker in multiprocessing.active_children():
                if worker not in before:
                    worker.kill()
            ended = isinstance(error, ConnectionError | EOFError)
            why = f"the fork server ended; {GUARD.format('forkserver')}; {FEWER}" if ended else lacking(error) or str(error)
            raise LoaderError(f"{num_workers} workers cannot be started: {why}") from error
        self._batches = batches
        if num_workers:
            if self._init is not None:
                self._init.supervised.array[0] = 1
            weakref.finalize(self, _end, batches).atexit = False  # in a cycle its queues would be finalized first: 5 s per worker
        if self.slots is not None and pin_memory and self._device is not None:
            self.slots.pin(self._device)  # after the fork: page-locked memory may be missing in a child

    @classmethod
    def start(cls, dataset: Any, requests: Requests, *args: Any, **options: Any) -> Workers:
        """Start workers and wait until they run; start a second set if the first hangs.

        Raises:
            LoaderError: the second set hangs too.
        """
        for _ in range(2):
            workers = cls(dataset, requests, *args, **options)
            if workers._started():
                return workers
            _kill(workers._batches)
            requests.rewind()
        raise LoaderError(
            "workers hang at their start: a thread of this program held a lock when it was forked. Start the loader before "
            "such threads, or call torch.multiprocessing.set_start_method('forkserver') first"
        )

    def _started(self) -> bool:
        """Return whether the workers run, or have ended, which `receive` reports."""
        end = time.monotonic() + START_S
        started = self._init.started.array if self._init is not None and self._forked else np.ones(1)
        while not started.all() and self.alive(within=0.001):
            if time.monotonic() > end:
                return False
        return True

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation: (images [n, C, H, W], targets), or the dataset's collated items.

        Raise whatever went wrong in a worker or with it.
        """
        self._raised = None
        while True:
            with _on_cpu():
                reply, data = self._next()
            if reply.request.generation == generation:
                break
            self._give_back(reply.request)
        if reply.error is not None:
            self._give_back(reply.request)
            try:
                reply.error.reraise()
            except Exception as error:
                # torch's frame refers to the error: a cycle, which would keep the memory of the batch that is being handed out
                self._raised = error.with_traceback(None)
                raise error
        return reply, self._images(reply, *data) if reply.images else data

    def _next(self) -> Any:
        """Wait for what the workers make next. Tell the user once if it does not come."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return next(self._batches)
            except RuntimeError as error:
                if not is_timeout(error):
                    raise
            if not self._told and time.monotonic() >= end:
                self._told = True
                warn_user(f"no batch has come for {PATIENCE_S:.0f} s: {_what_they_do(workers_of(self._batches))}")

    def _images(self, reply: Reply, fresh: list[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        """Return the batch from its slot or, if it did not fit, from fresh memory."""
        slot = reply.request.slot
        spans = [span for span in reply.spans if span is not None]
        in_slot: list[torch.Tensor] = []
        if spans and self.slots is not None and slot is not None:
            in_slot = self.slots.hand_out(slot, spans)
        else:
            self._give_back(reply.request)
        arrays = [(fresh if span is None else in_slot).pop(0) for span in reply.spans]
        if self._pin:  # a copy: the end of a user's copy from a slot to a GPU is unknown here, but known to torch's allocator
            arrays = [tensor.pin_memory() for tensor in arrays]
        found: tuple[Any, Any] = self._dataset.assemble(arrays, targets)
        return found

    def _give_back(self, request: Request) -> None:
        if request.slot is not None and self.slots is not None:
            self.slots.give_back(request.slot)

    def ready(self) -> bool:
        """Return whether the next batch is made. Without workers, none is made ahead."""
        with _on_cpu():
            return bool(arrived(self._batches))

    def died(self, error: BaseException) -> bool:
        """Return whether the error means a dead worker: torch's own message, or a connection that broke during a fetch."""
        if error is self._raised or not workers_of(self._batches):
            return False
        try:
            return "DataLoader worker" in str(error) or (isinstance(error, OSError | EOFError) and not self.alive(within=1))
        except RuntimeError:  # from torch's signal handler, just now
            return True

    def alive(self, within: float = 0) -> bool:
        """Return whether no worker has ended, or ends within so many seconds: its connections break a moment earlier."""
        return not wait([worker.sentinel for worker in workers_of(self._batches)], within)

    def close(self) -> None:
        """End the workers now: the garbage collector may be late, since an error's traceback may hold the iterator."""
        _end(self._batches)
