"""A pass over an epoch of a Loader: its position, and the engine that makes its batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

from fastdata.data.dataset import Timing
from fastdata.errors import LoaderError
from fastdata.gpu.batch import Batch
from fastdata.gpu.batch_transform import transform_batch
from fastdata.loader.engine import Engine
from fastdata.loader.fetch import Reply, Request
from fastdata.loader.requests import Requests


@dataclass
class Stats(Timing):
    """Counts and times of a loader so far, in this process.

    Attributes:
        batches, samples: how many were delivered.
        wait_s: seconds that the consumer waited for a batch.
        work_s: seconds that workers spent making batches (without workers: that this process spent).
        read_s, decode_s, resize_s: parts of work_s: waiting for the images' bytes; decoding; resizing, cropping and flipping.
        slots, slots_in_use: batches that shared memory has room for, and how many of these are being filled, waiting or held.
        slot_bytes: shared memory of all slots.
        copies: batches that were handed out as a copy because the consumer held too many.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    slots: int = 0
    slots_in_use: int = 0
    slot_bytes: int = 0
    copies: int = 0

    def add(self, reply: Reply, wait_s: float) -> None:
        """Add one more batch."""
        self.batches += 1
        self.samples += reply.request.valid
        self.wait_s += wait_s
        self.work_s += reply.work_s
        self.read_s += reply.timing.read_s
        self.decode_s += reply.timing.decode_s
        self.resize_s += reply.timing.resize_s


@dataclass(eq=False)
class LoaderPosition:
    """The position of a Loader, and its running engine, if any. An engine outlives a pass, since it makes the next epoch ahead.

    Attributes:
        epoch, consumed: the position of the next batch.
        begun: whether a batch was delivered since the position was set.
        passes: how many passes have begun; only the last of them delivers.
        in_flight: the position of the batch that the engine returns next.
        transforms: the functions for each batch on its device.
        requests: the `Requests` of this rank, or None until the rank is looked up.
    """

    epoch: int = 0
    consumed: int = 0
    begun: bool = False
    passes: int = 0
    in_flight: tuple[int, int] = (0, 0)
    transforms: list[Callable[[Any], Any]] = field(default_factory=list)
    requests: Any = None
    engine: Engine | None = None
    stats: Stats = field(default_factory=Stats)

    def copy(self) -> LoaderPosition:
        """Return this position, with nothing that runs."""
        if self.engine is not None:
            raise TypeError("a running Loader cannot be pickled: pickle its state_dict(), or close() it first")
        return replace(self, requests=None, stats=replace(self.stats))

    @property
    def position(self) -> tuple[int, int]:
        return self.epoch, self.consumed

    def move_to(self, epoch: int, consumed: int) -> None:
        """Set the next batch. A pass that has delivered batches ends; another pass begins there."""
        self.epoch, self.consumed = epoch, consumed
        self.passes += self.begun
        self.begun = False

    def end_epoch(self) -> None:
        if self.consumed >= self.requests.counts.epoch_stop:  # the next epoch's first batches are in flight
            self.in_flight = (self.epoch + 1, 0)
        self.epoch, self.consumed, self.begun = self.epoch + 1, 0, False

    def deliver(self, this_pass: int, start: Callable[[], Engine], outdated: Callable[[], bool]) -> Iterator[Any]:
        """Yield the rest of the epoch. `outdated` says whether the running engine must end; `start` returns a new one."""
        while True:
            if this_pass != self.passes:
                raise LoaderError(
                    "this pass was ended by a new pass, set_epoch or load_state_dict: a loader delivers one pass at a time"
                )
            if self.consumed >= self.requests.counts.epoch_stop:
                break
            if outdated():
                self.close()
            yield self._receive(start)  # bind it to no name here: dropping the batch must free it
        self.end_epoch()

    def _receive(self, start: Callable[[], Engine]) -> Any:
        """Return the next batch from the running engine, or from a new one."""
        started = time.perf_counter()
        requests: Requests = self.requests
        try:
            if self.engine is None or self.in_flight != self.position:
                requests.restart(*self.position)  # batches in flight are dropped
            if self.engine is None:
                self.engine = start()
                _running.add(self)
            reply, data = self.engine.receive(requests.generation)
        except BaseException:
            self.close()  # the next pass starts new workers
            raise
        self.stats.add(reply, time.perf_counter() - started)
        self.consumed, self.begun = reply.request.stop, True
        self.in_flight = self.position
        if self.transforms:
            data = transform_batch(_with_rows(data, reply.request), self.transforms)
        return _with_rows(data, reply.request)

    def close(self) -> None:
        """End the engine. The next batch starts another; batches still held keep their memory."""
        if (engine := self.detach()) is not None:
            engine.close()
            self.stats.copies += engine.slots.copies if engine.slots is not None else 0

    def detach(self) -> Engine | None:
        """Forget the engine and return it."""
        engine, self.engine = self.engine, None
        if self.requests is not None:
            self.requests.end()
        return engine


def _with_rows(data: Any, request: Request) -> Any:
    """Return a batch with the attributes `valid`, `ids` and `position`."""
    valid, ids, position = request.valid, request.indices, (request.epoch, request.stop)
    if type(data) in (tuple, list, dict):
        return Batch.of(data, valid, ids, position)
    try:
        data.valid, data.ids, data.position = valid, ids, position
    except AttributeError:
        if valid < len(ids):
            raise LoaderError(
                f"{len(ids) - valid} of {len(ids)} rows of a batch are repeats, but a {type(data).__name__} cannot have "
                ".valid to say so: let collate_fn and batch_transform return tuples or dicts, or give batch_size and drop_last=True"
            ) from None
    return data


_running = WeakSet[LoaderPosition]()  # those that have started an engine
_parents_engines = list[Engine | None]()  # kept in a forked child: freeing them would end the parent's workers


def _after_fork() -> None:
    """Let the loaders of a forked child start their own engines, since the inherited ones have workers that answer the parent."""
    _parents_engines.extend([position.detach() for position in list(_running)])


os.register_at_fork(after_in_child=_after_fork)
