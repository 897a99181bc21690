"""Memory shared by processes: an anonymous file that is gone with its last user, even after `kill -9`."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from fastdata.errors import StoreError, lacking
from fastdata.types import Array


class SharedArray:
    """A numpy array in shared memory (Linux memfd): no name to clean up, no /dev/shm limit.

    It pickles as a reference to its creator's descriptor, a few bytes, which another process of the same user can open while the
    creator lives. A forked child has the mapping already.

    Attributes:
        array: the array, shared with every process that has it.

    Raises:
        StoreError: there is not enough memory, or the creator has ended.
    """

    _FLAGS, _ACCESS = os.O_RDWR, mmap.ACCESS_WRITE

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = np.uint8) -> None:
        shape = (shape,) if isinstance(shape, int) else shape
        dtype = np.dtype(dtype)
        size = dtype.itemsize * math.prod(shape)
        descriptor = -1
        try:
            descriptor = os.memfd_create("fastdata", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, max(size, 1))
            self._attach(descriptor, dtype, shape)
        except (OSError, OverflowError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise StoreError(f"cannot reserve {size} bytes of shared memory: {lacking(error) or error}") from error

    @classmethod
    def of(cls, values: Array) -> SharedArray:
        """Return a shared copy of an array."""
        shared = cls(values.shape, values.dtype)
        shared.array[...] = values
        return shared

    def _attach(self, descriptor: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=self._ACCESS)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.array: Array = np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)

    def __getstate__(self) -> tuple[Any, ...]:
        return os.getpid(), self._descriptor, os.fstat(self._descriptor).st_ino, self.array.dtype, self.array.shape

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        owner, number, inode, dtype, shape = state
        descriptor = -1
        with suppress(OSError):
            descriptor = os.open(f"/proc/{owner}/fd/{number}", self._FLAGS)
        if descriptor < 0 or os.fstat(descriptor).st_ino != inode:
            raise StoreError(f"process {owner} no longer holds this data: keep the dataset alive there, or make it again here")
        self._attach(descriptor, dtype, shape)
