"""Slots: shared memory that workers write batches into and the consumer reads in place.

A slot is handed out as a tensor and is free again when the last view of that tensor is gone. The number of slots is fixed. If the
consumer holds so many batches that no slot is left for the next one, it gets a copy instead: a batch never changes while this
process holds it, and memory does not grow. A forked child has to clone the batches that it keeps: what it holds is not counted.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.errors import warn_user
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array

ALIGN = 64  # bytes to which the second array of a batch is aligned
MAX_HELD_BATCHES = 3  # by a consumer, without a copy: the new one, the last one until its name is rebound, and a spare


class Span(NamedTuple):
    """An array in a slot, from byte `start` on."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def of(self, slot: Array) -> Array | None:
        """Return this part of a slot, uint8, as an array, or None if it does not fit."""
        return slot[self.start : self.stop].view(self.dtype).reshape(self.shape) if self.stop <= slot.size else None


class Slots:
    """Keeps account of the slots, in the consumer's process.

    Args:
        in_flight: batches that are requested and not yet handed out.
        size: bytes of a batch.
        held: batches that are handed out, or being copied to a device.

    Attributes:
        in_flight: as given.
        count: the number of slots.
        memory: uint8 [count, bytes], which workers write batches into.
        copies: batches that were handed out as a copy.
        reclaim: releases batches that were copied to a device, and waits for copies until a condition holds. Set by the copier.
    """

    def __init__(self, in_flight: int, size: int, *, held: int = MAX_HELD_BATCHES) -> None:
        self.in_flight = in_flight
        self.count = in_flight + held + 1  # one more for the request that precedes handing out
        self.memory = SharedArray((self.count, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE))
        self._free = deque(range(self.count))
        self.reclaim: Callable[[Callable[[], bool]], None] = lambda enough: None
        self.copies = 0

    @property
    def nbytes(self) -> int:
        return self.memory.array.nbytes

    @property
    def in_use(self) -> int:
        """Slots that are being filled, waiting, or held by the consumer."""
        return self.count - len(self._free)

    def take(self) -> int:
        """Return a free slot for the next request."""
        self.reclaim(self._some_free)
        return self._free.popleft()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def hand_out(self, slot: int, spans: Sequence[Span]) -> list[torch.Tensor]:
        """Return the arrays of a batch in a slot, which is free again when the last tensor, and the last view of one, is gone."""
        memory = self.memory.array[slot, : max(span.stop for span in spans)]  # a new object that the tensors keep alive
        self.reclaim(self._some_free)
        if not self._free:
            self.copies += 1
            self.give_back(slot)
            memory = memory.copy()
        else:
            weakref.finalize(memory, self._free.append, slot)
        whole = torch.from_numpy(memory)
        return [whole[s.start : s.stop].view(torch.from_numpy(np.empty(0, s.dtype)).dtype).view(s.shape) for s in spans]

    def _some_free(self) -> bool:
        return bool(self._free)

    def pin(self, device: torch.device) -> None:
        """Page-lock the slots, once, so that copies to a GPU overlap with its work. Warn if CUDA refuses."""
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        start = self.memory.array.ctypes.data
        with torch.cuda.device(device):
            code = int(cudart.cudaHostRegister(start, self.nbytes, 0))
            if not code:
                weakref.finalize(self, _unpin, cudart, start, device).atexit = False
                return
            with suppress(RuntimeError):  # CUDA reports the error again on the next call
                torch.zeros(1, device=device).add_(1)
        text = f"CUDA did not page-lock {self.nbytes / 1e6:.0f} MB for batches (error {code})"
        warn_user(f"{text}: batches are copied through other memory, which takes longer")


def _unpin(cudart: Any, start: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a copy may still be reading
    cudart.cudaHostUnregister(start)
