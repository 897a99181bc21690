"""Slots: shared memory that workers write batches into and the consumer reads in place.

A slot is lent out as a tensor and comes back when the last view of that tensor is gone. The number of slots is fixed. When the
consumer keeps so many batches that none would be left for the next one, a batch is handed out as a copy instead, so that a
batch never changes while anyone in this process holds it, and memory never grows. A child that is forked while it holds a batch
is not counted: it has to clone what it keeps.
"""

from __future__ import annotations

import math
import mmap
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.shared_memory import SharedArray

__all__ = ["ALIGN", "HELD", "Place", "Slots", "Span"]

Array = np.ndarray[Any, np.dtype[Any]]

ALIGN = 64  # bytes: where a second array of a batch may begin
HELD = 3  # batches without a copy in the consumer's hands: the new one, the one before until its name is bound anew, one put by


class Span(NamedTuple):
    """Where in a slot an array lies: from byte `start` on."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class Place:
    """The slots as a worker sees them: memory to write batches into."""

    def __init__(self, count: int, size: int) -> None:
        self.memory = SharedArray((count, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE))

    def array(self, slot: int, span: Span) -> Array | None:
        """A part of a slot as an array; None where it does not fit."""
        row = self.memory.array[slot]
        return row[span.start : span.stop].view(span.dtype).reshape(span.shape) if span.stop <= row.size else None


class Slots:
    """Keeps account of the slots; in the process of the consumer only.

    Args:
        in_flight: batches that are asked for and not yet handed out.
        size: bytes of a batch.
        held: batches that are handed out, or being copied to a device.

    Attributes:
        reclaim: lets go of batches that are copied, and waits for copies until a condition holds. Whoever copies sets it.
    """

    def __init__(self, in_flight: int, size: int, *, held: int = HELD) -> None:
        self.count = in_flight + held + 1  # one more, so that the next request finds one before a batch is handed out
        self.place = Place(self.count, size)
        self._free = deque(range(self.count))
        self.reclaim: Callable[[Callable[[], bool]], None] = lambda enough: None
        self.copies = 0

    @property
    def nbytes(self) -> int:
        return self.place.memory.array.nbytes

    @property
    def in_use(self) -> int:
        """Slots that are being filled, or waiting, or in the hands of the consumer."""
        return self.count - len(self._free)

    def take(self) -> int:
        """A free slot for the next request."""
        self.reclaim(self._some_free)
        return self._free.popleft()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def hand_out(self, slot: int, spans: Sequence[Span]) -> list[torch.Tensor]:
        """The arrays of a batch in a slot. It comes back when nobody holds one of the tensors, or a view of one, any more."""
        memory = self.place.memory.array[slot, : max(span.stop for span in spans)]  # an object of its own, which the tensors keep
        self.reclaim(self._some_free)
        if not self._free:
            self.copies += 1
            self.give_back(slot)
            memory = memory.copy()
        else:
            weakref.finalize(memory, self._free.append, slot).atexit = False
        whole = torch.from_numpy(memory)
        return [whole[s.start : s.stop].view(torch.from_numpy(np.empty(0, s.dtype)).dtype).view(s.shape) for s in spans]

    def _some_free(self) -> bool:
        return bool(self._free)

    def pin(self, device: torch.device) -> None:
        """Page-lock the slots, once, for copies to a GPU that overlap with its work. Where CUDA refuses, it warns."""
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        start = self.place.memory.array.ctypes.data
        with torch.cuda.device(device):
            code = int(cudart.cudaHostRegister(start, self.nbytes, 0))
            if code:
                with suppress(RuntimeError):  # CUDA tells of an error again, to whoever calls next
                    torch.zeros(1, device=device).add_(1)
        if code:
            text = f"CUDA did not page-lock {self.nbytes / 1e6:.0f} MB for batches (error {code})"
            warnings.warn(f"{text}: they are copied through other memory, which costs time", RuntimeWarning, stacklevel=2)
        else:
            weakref.finalize(self, _unpin, cudart, start, device).atexit = False


def _unpin(cudart: Any, start: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a copy may still read
    cudart.cudaHostUnregister(start)
