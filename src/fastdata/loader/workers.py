"""The processes that make batches: torch's DataLoader over an endless list of requests, and the slots that it fills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import util
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.data.dataset import SlotDataset
from fastdata.errors import LoaderError
from fastdata.loader.fetch import Fetch, Reply, Request, as_is, quiet_worker, ready_to_fork
from fastdata.loader.requests import Source
from fastdata.loader.slots import ALIGN, HELD, Slots
from fastdata.shared_memory import SharedArray
from fastdata.torch_private import arrived, end_workers, kill_workers, workers_of

__all__ = ["Workers", "why_died"]


def why_died() -> str:
    """What may have ended a worker, and what to do."""
    method, said = multiprocessing.get_start_method(), "if memory ran out, use fewer workers"
    if method == "fork":
        return said
    return f'{said}; where {method} starts workers, a script needs `if __name__ == "__main__":` around what starts its loaders'


def _on_cpu() -> AbstractContextManager[Any]:
    """torch's DataLoader makes small tensors of its own on the default device, which may be a GPU."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C amid a fork would be lost in one of Python's hooks, end a worker that does not ignore it yet, or leave one behind."""
    handler, heard = signal.getsignal(signal.SIGINT), list[int]()
    if not callable(handler) or threading.current_thread() is not threading.main_thread():  # nobody is called here
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


START_S = 30.0  # a forked worker begins within milliseconds


class Greeting:
    """What a worker does first: it says that it lives, and leaves signals that all processes of a job get to its parent.

    A thread that holds a lock of the interpreter or of a library while this process forks leaves it locked in the child for ever.
    Python 3.11 itself may wait for such a lock before it runs the child's first line, for instance beside threads of gloo.

    Attributes:
        heard: 1 for each worker that has begun.
        kept: 1 while the parent sees to it that the workers end. Until then, and from then on, SIGTERM ends them: it is what
            multiprocessing sends them when the parent ends, and then waits for ever.
    """

    def __init__(self, workers: int) -> None:
        self.heard, self.kept = SharedArray(workers), SharedArray(1)

    def __call__(self, worker: int) -> None:
        self.heard.array[worker] = 1
        begin_worker(worker)
        signal.signal(signal.SIGTERM, self._asked_to_end)  # and not SIG_IGN, which programs that a transform starts would inherit

    def _asked_to_end(self, number: int, frame: Any) -> None:
        """Schedulers send SIGTERM to all processes of a job: the parent may want to save, and needs batches until it has."""
        if not self.kept.array[0]:
            os._exit(0)


def begin_worker(worker: int) -> None:
    """Ctrl-C, which all processes of a terminal get, is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet_worker(worker)


_seen_to = set[int]()  # processes that kill their workers when they end
_running = weakref.WeakKeyDictionary[Any, tuple[int, Greeting | None]]()  # torch's iterators: whose workers they have


def _taken(batches: Any) -> bool:
    """Whether this process has the workers of an iterator, and nobody has ended them yet. SIGTERM ends them from here on."""
    owner, greeting = _running.pop(batches, (0, None))
    if owner == os.getpid() and greeting is not None:
        greeting.kept.array[0] = 0
    return owner == os.getpid()


def _end(batches: Any) -> None:
    """End the workers, and then those that did not listen."""
    if _taken(batches):
        end_workers(batches)


def _kill(batches: Any) -> None:
    if _taken(batches):
        kill_workers(batches)


def _kill_all() -> None:
    for batches in list(_running):
        _kill(batches)


def _see_to_the_end() -> None:
    """Kill the workers at the end of this process, before multiprocessing sends them SIGTERM and waits for their end.

    Processes that multiprocessing has started call no function of atexit's, but these.
    """
    if os.getpid() not in _seen_to:
        _seen_to.add(os.getpid())
        util.Finalize(None, _kill_all, exitpriority=1)


class Workers:
    """Workers of one life: they end with an error, or with `close`.

    Args:
        dataset: what to read; images travel in slots, items of other datasets as torch's DataLoader sends them.
        requests: what is asked for, in order.
        rows: the most samples of a batch.
        num_workers: processes; 0: batches are made when they are received.
        prefetch_factor: batches that each makes ahead.
        pin_memory: page-lock the batches, where there is a GPU.
        device: where the loader copies them to.
        ahead: batches that it copies ahead of the consumer.
        collate: makes batches of the items of a foreign dataset; None: torch's default_collate.
    """

    def __init__(
        self,
        dataset: Any,
        requests: Source,
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
        self._told: BaseException | None = None
        self._channels_last = isinstance(dataset, SlotDataset) and dataset.channels_last
        self.slots: Slots | None = None
        method = multiprocessing.get_start_method() if num_workers else ""
        self._forked = method == "fork"
        self._greeting = Greeting(num_workers) if num_workers and SharedArray.possible() else None
        if method == "forkserver":  # the workers then share what they import; no effect on a server that runs already
            multiprocessing.get_context(method).set_forkserver_preload(["__main__", "fastdata.loader.preload"])
        if isinstance(dataset, SlotDataset) and SharedArray.possible():
            in_flight = max(1, num_workers * prefetch_factor)
            self.slots = Slots(
                in_flight,
                rows * requests.sizes.largest(dataset) + ALIGN * dataset.large_targets,
                held=HELD + ahead,
            )
        self._pin = pin_memory and self._device is None and torch.cuda.is_available()
        requests.slots = self.slots
        requests.fill()  # an error of a sampler comes before there are workers
        loader = DataLoader(
            Fetch(dataset, self.slots.place if self.slots else None, collate),
            batch_sampler=requests,  # type: ignore[arg-type]  # whole requests, not lists of indices
            num_workers=num_workers,
            collate_fn=as_is,
            pin_memory=pin_memory and self.slots is None,
            prefetch_factor=prefetch_factor if num_workers else None,
            worker_init_fn=self._greeting or begin_worker,
            generator=torch.Generator(),  # torch's own generator stays as the user left it
        )
        with ready_to_fork(), _on_cpu(), _uninterrupted():
            batches: Any = iter(loader)
            if num_workers:
                _see_to_the_end()
                _running[batches] = os.getpid(), self._greeting
        self._batches = batches
        if num_workers:
            if self._greeting is not None:
                self._greeting.kept.array[0] = 1
            weakref.finalize(self, _end, batches).atexit = False  # in a cycle its queues would be finalized first: 5 s a worker
        if self.slots is not None and pin_memory and self._device is not None:
            self.slots.pin(self._device)  # after the fork: what is page-locked may be missing in a child

    @classmethod
    def start(cls, dataset: Any, requests: Source, *args: Any, **options: Any) -> Workers:
        """Workers that are at work; a second set where the first hangs.

        Raises:
            LoaderError: the second hangs as well.
        """
        for _ in range(2):
            workers = cls(dataset, requests, *args, **options)
            if workers._started():
                return workers
            _kill(workers._batches)
            requests.again()
        raise LoaderError(
            "workers hang while they start: a thread of this program held a lock when it was forked. Start the loader before "
            "such threads, or call torch.multiprocessing.set_start_method('forkserver') first"
        )

    def _started(self) -> bool:
        """Whether the workers are at work; or have ended, which `receive` reports."""
        end = time.monotonic() + START_S
        heard = self._greeting.heard.array if self._greeting is not None and self._forked else np.ones(1)
        while not heard.all() and self.alive(within=0.001):
            if time.monotonic() > end:
                return False
        return True

    def receive(self, generation: int) -> tuple[Reply, Any]:
        """The next batch of this generation: (images [n, C, H, W], targets), or what the dataset's items collate to.

        Raises whatever went wrong, in a worker or with it.
        """
        while True:
            with _on_cpu():
                reply, data = next(self._batches)
            if reply.request.generation == generation:
                break
            self._give_back(reply.request)
        if reply.error is not None:
            self._give_back(reply.request)
            try:
                reply.error.reraise()
            except Exception as error:
                self._told = error
                raise
        return reply, self._images(reply, *data) if reply.images else data

    def _images(self, reply: Reply, fresh: list[torch.Tensor], targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """From their slot or, where they did not fit, from fresh memory."""
        slot, spans = reply.request.slot, [span for span in reply.spans if span is not None]
        lent: list[torch.Tensor] = []
        if spans and self.slots is not None and slot is not None:
            lent = self.slots.hand_out(slot, spans)
        else:
            self._give_back(reply.request)
        images, *others = [(fresh if span is None else lent).pop(0) for span in reply.spans]
        if self._pin:  # a copy: nobody would tell when the user's own copy from a slot to a GPU is done; torch's allocator knows
            images, *others = (tensor.pin_memory() for tensor in (images, *others))
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        return images, others[0] if others else torch.from_numpy(targets)

    def _give_back(self, request: Request) -> None:
        if request.slot is not None and self.slots is not None:
            self.slots.give_back(request.slot)

    def ready(self) -> bool:
        """Whether the next batch is made. Without workers, none is before it is asked for."""
        with _on_cpu():
            return bool(arrived(self._batches))

    def died(self, error: BaseException) -> bool:
        """Whether this is how a dead worker shows: torch's own message, or a connection that broke while a batch was fetched."""
        if error is self._told or not workers_of(self._batches):
            return False
        try:
            return "DataLoader worker" in str(error) or (isinstance(error, OSError | EOFError) and not self.alive(within=1))
        except RuntimeError:  # from torch's signal handler, which has heard of it this moment
            return True

    def alive(self, within: float = 0) -> bool:
        """Whether no worker has ended, or ends within some seconds: its connections break a moment earlier."""
        return not wait([worker.sentinel for worker in workers_of(self._batches)], within)

    def close(self) -> None:
        """End them now; not left to the garbage collector, since an error's traceback may hold the iterator."""
        _end(self._batches)
