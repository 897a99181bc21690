"""Worker processes: torch's DataLoader over an endless list of requests, and the slots that it fills."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import forkserver, util
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastdata.data.dataset import SlotDataset
from fastdata.errors import LoaderError, lacking, warn_user
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Fetch, Reply, Request, as_is, quiet_worker, sized
from fastdata.loader.ranks import PATIENCE_S
from fastdata.loader.requests import Requests
from fastdata.loader.slots import ALIGN, MAX_HELD_BATCHES, Slots
from fastdata.system.children import end_with
from fastdata.system.torch_private import arrived, default_device, end_workers, workers_of

PRELOAD = ["__main__", "fastdata.loader.preload"]
WHY_DIED = (
    "if memory ran out, use fewer workers; with start method spawn or forkserver, a script needs "
    '`if __name__ == "__main__":` around the code that starts loaders'
)


def _on_cpu() -> AbstractContextManager[Any]:
    """Make the CPU torch's default device meanwhile, since DataLoader makes small tensors on the default one."""
    return nullcontext() if default_device().type == "cpu" else torch.device("cpu")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until a fork is done: a hook of Python could lose it, or it could end a worker or leave one running."""
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


CHECK_S = 5.0  # between two looks at workers that do not answer, as in torch's DataLoader


def begin_worker(worker: int) -> None:
    """Leave Ctrl-C and SIGTERM, which all processes of a terminal or a job receive, to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # not SIG_IGN, which programs started by a transform would inherit
    parent = multiprocessing.parent_process()  # which asked for the worker; to the system, the fork server may be the parent
    assert parent is not None
    end_with(int(parent.sentinel))
    quiet_worker(worker)


class Workers(Engine):
    """Worker processes, until an error or `close` ends them. Images travel in slots, other items as torch's DataLoader sends them.

    Args:
        loader: the Loader whose batches are made.
        requests: the requests, in order.
    """

    def __init__(self, loader: Any, requests: Requests) -> None:
        dataset, count, device = loader.dataset, loader.num_workers, loader.device
        on_gpu = device is not None and device.type == "cuda"
        self._warned = False  # that a batch does not come
        self._dataset = dataset
        if count and multiprocessing.get_start_method() == "forkserver":
            forkserver.set_forkserver_preload(PRELOAD)  # no effect on a running server
        if isinstance(dataset, SlotDataset):
            largest = max(sized(dataset, size).sample_bytes() for _, size in requests.sizes)
            size = requests.rows() * largest + ALIGN * (dataset.arrays_per_batch - 1)
            ahead = 0 if device is None else loader.device_prefetch
            self.slots = Slots(max(1, count * loader.prefetch_factor), size, held=MAX_HELD_BATCHES + ahead)
        self._pin = loader.pin_memory and not on_gpu and torch.cuda.is_available()
        requests.slots = self.slots
        requests.fill()  # raise a sampler's error before there are workers
        source = DataLoader(
            Fetch(dataset, self.slots.memory if self.slots else None, loader.collate_fn),
            batch_sampler=requests,  # type: ignore[arg-type]  # whole requests, not lists of indices
            num_workers=count,
            collate_fn=as_is,
            pin_memory=loader.pin_memory and self.slots is None,
            prefetch_factor=loader.prefetch_factor if count else None,
            timeout=CHECK_S if count else 0,
            worker_init_fn=begin_worker,
            generator=torch.Generator(),  # leaves torch's default generator unchanged
        )
        self._batches = self._begin(source)
        # A process that ends runs this first: its queues, whose priority is 10, would be closed before, which takes 5 s each, and
        # multiprocessing would wait for workers that leave its SIGTERM to their parent.
        self._end: Any = util.Finalize(self, end_workers, [self._batches], exitpriority=100) if count else None
        if self.slots is not None and loader.pin_memory and on_gpu:
            self.slots.pin(device)  # after the fork: page-locked memory may be missing in a child

    def _begin(self, source: DataLoader[Any]) -> Any:
        """Start the workers; if one cannot start, end the others."""
        before = multiprocessing.active_children()
        try:
            with _on_cpu(), _uninterrupted():
                gc.freeze()  # the collector's marks would give each child its own copy of the pages of all objects
                try:
                    return iter(source)
                finally:
                    gc.unfreeze()
        except BaseException as error:
            for worker in multiprocessing.active_children():
                if worker not in before:
                    worker.kill()
            if not isinstance(error, OSError | EOFError):
                raise
            why = lacking(error) or f"{error or 'the fork server ended'}; {WHY_DIED}"
            raise LoaderError(f"{source.num_workers} workers cannot be started: {why}") from error

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """Return the next batch of this generation: (images [n, C, H, W], targets), or the dataset's collated items.

        Raise whatever went wrong in a worker or with it.
        """
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
                error.__traceback__ = None
                raise error
        return reply, self._images(reply, *data) if isinstance(self._dataset, SlotDataset) else data

    def _next(self) -> Any:
        """Wait for the next result of the workers. Warn once if none comes."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return next(self._batches)
            except (RuntimeError, OSError, EOFError) as error:
                if self._died(error):
                    raise LoaderError(f"a worker died: {error}; {WHY_DIED}") from error
                if "DataLoader timed out" not in str(error):  # after CHECK_S; the next call goes on waiting
                    raise
            if not self._warned and time.monotonic() >= end:
                self._warned = True
                pids = [worker.pid for worker in workers_of(self._batches)]
                warn_user(
                    f"no batch has come for {PATIENCE_S:.0f} s: the workers {pids} are busy, or wait for storage or a lock; "
                    f"py-spy dump --pid {pids[0]} shows where. A lock that a thread held at the fork stays locked in workers: "
                    "start the Loader before such threads, or call torch.multiprocessing.set_start_method('forkserver') first"
                )

    def _images(self, reply: Reply, fresh: list[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        """Return the batch from its slot and, as far as it did not fit, from fresh memory."""
        arrays = fresh
        if reply.spans and self.slots is not None and reply.request.slot is not None:
            arrays = [*self.slots.hand_out(reply.request.slot, reply.spans), *fresh]
        else:
            self._give_back(reply.request)
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

    def _died(self, error: Exception) -> bool:
        """Return whether the error means a dead worker: torch's own message, or a connection that broke during a fetch."""
        if "DataLoader worker" in str(error):
            return bool(workers_of(self._batches))
        return isinstance(error, OSError | EOFError) and not self.alive(within=1)

    def alive(self, within: float = 0) -> bool:
        """Return whether all workers run, and go on for so many seconds: a dying worker's connections break first."""
        return not wait([worker.sentinel for worker in workers_of(self._batches)], within)

    def close(self) -> None:
        """End the workers now: the garbage collector may be late, since an error's traceback may hold the iterator."""
        if self._end is not None:
            self._end()
