"""A GPU on paper: streams that run as late or as early as they may, and memory that is given out again at once, in stream order.

What is queued runs only when the host waits for an event, so every wait that is missing between streams shows in the bytes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastdata.gpu import copies


class Event:
    def __init__(self, gpu: PaperGPU) -> None:
        self._gpu, self._recorded, self.done = gpu, False, False

    def record(self, stream: Stream) -> None:
        self._recorded = True
        stream.queue.append(self)

    def query(self) -> bool:
        self._gpu.passes_time()
        return self.done or not self._recorded

    def synchronize(self) -> None:
        if not self.query():
            self._gpu.waits += 1
            self._gpu.run(lambda: self.done)
        assert self.done


class Stream:
    """queue: events to record, events to wait for, and work."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.queue: deque[Any] = deque()

    def wait_event(self, event: Event) -> None:
        self.queue.append(("wait", event))

    def step(self) -> bool:
        """Run the next thing, if it may run."""
        if not self.queue or (isinstance(self.queue[0], tuple) and not self.queue[0][1].done):
            return False
        first = self.queue.popleft()
        if isinstance(first, Event):
            first.done = True
        elif callable(first):
            first()
        return True


class PaperGPU:
    """Stands for torch.cuda, in this process's memory.

    Args:
        eager: copies run as early as they may, and the consumer's work as late; else the other way round.

    Attributes:
        sent: bytes of each copy.
        seen: what the kernels of the consumer have read.
        waits: of the host.
    """

    def __init__(self, *, eager: bool) -> None:
        self.eager, self.sent, self.seen, self.waits = eager, list[int](), list[Tensor](), 0
        self.home, self.side, self.own = Stream(), Stream(), Stream()
        self.current = self.home
        self._buffers: dict[int, Any] = {}
        self._free: list[Any] = []
        self._noted: dict[int, list[Stream]] = {}

    # As torch.cuda has it

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self, device: Any = None) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    # Time

    def passes_time(self) -> None:
        while self.eager and self.side.step():
            pass

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run everything, or until something is so; the favoured stream always first."""
        order = [self.side, self.home, self.own] if self.eager else [self.home, self.own, self.side]
        while not until() and any(stream.step() for stream in order):
            pass

    # Memory

    def room(self, source: Tensor, device: Any = None) -> Tensor:
        self.passes_time()
        size = source.nbytes
        found = next(
            (k for k, (buffer, events) in enumerate(self._free) if len(buffer) == size and all(e.done for e in events)), None
        )
        buffer = np.full(size, 111, np.uint8) if found is None else self._free.pop(found)[0]
        self._buffers[buffer.ctypes.data] = buffer
        array = buffer[:]
        weakref.finalize(array, self._freed, buffer).atexit = False
        return torch.from_numpy(array)

    def _freed(self, buffer: Any) -> None:
        events = [self.Event() for _ in self._noted.get(buffer.ctypes.data, ())]
        for event, stream in zip(events, self._noted.pop(buffer.ctypes.data, ()), strict=True):
            event.record(stream)
        self._free.append((buffer, events))

    def note(self, block: Tensor, stream: Stream) -> None:
        """record_stream."""
        self._noted.setdefault(block.untyped_storage().data_ptr(), []).append(stream)

    @property
    def allocated(self) -> int:
        return len(self._buffers)

    def _raw(self, tensor: Tensor) -> Tensor:
        """The same memory, which it does not keep from being freed, as a kernel does not."""
        memory = torch.from_numpy(self._buffers[tensor.untyped_storage().data_ptr()])
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    # Kernels

    def send(self, block: Tensor, source: Tensor) -> None:
        self.sent.append(source.nbytes)
        raw = self._raw(block)
        address, size = source.data_ptr(), source.nbytes
        host = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * size).from_address(address))  # nor does a copy keep its source
        self.current.queue.append(lambda: raw.copy_(torch.from_numpy(host)))

    def read(self, tensor: Tensor) -> None:
        raw = self._raw(tensor)
        self.current.queue.append(lambda: self.seen.append(raw.clone()))

    def scribble(self, size: int) -> Tensor:
        """Another tensor of the consumer's, written to."""
        made = self.room(torch.empty(size, dtype=torch.uint8))
        raw = self._raw(made)
        self.current.queue.append(lambda: raw.fill_(222))
        return made


def take_over(patch: pytest.MonkeyPatch, *, eager: bool) -> PaperGPU:
    """From here on, every Copier copies to a GPU on paper."""
    gpu, made = PaperGPU(eager=eager), copies.Copier.__init__

    def init(self: Any, device: Any, **options: Any) -> None:
        made(self, "cpu", pin=False)
        self._side = gpu.side

    patch.setattr(copies.Copier, "__init__", init)
    patch.setattr(copies, "cuda", gpu)
    patch.setattr(copies, "_room", gpu.room)
    patch.setattr(copies, "_send", gpu.send)
    patch.setattr(Tensor, "record_stream", lambda block, stream: gpu.note(block, stream))
    return gpu
