"""Memory shared by processes: an anonymous file that is gone with its last user, even after `kill -9`."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.errors import StoreError, lacking

__all__ = ["PrivateArray", "SharedArray", "kept"]

Array = np.ndarray[Any, np.dtype[Any]]


class SharedArray:
    """A numpy array in shared memory (Linux memfd): no name to clean up, no /dev/shm limit.

    It pickles as a reference to its creator's descriptor, a few bytes, which another process of the same user can open while the
    creator lives. A forked child has the mapping already.

    Attributes:
        array: the array, shared with every process that has it.

    Raises:
        StoreError: shared memory is not available, or the creator has ended.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = np.uint8) -> None:
        if not self.possible():
            raise StoreError("keeping data in shared memory needs Linux (memfd_create); use LMDBDataset here")
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
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"cannot reserve {size} bytes of shared memory: {lacking(error) or why}") from error

    @staticmethod
    def possible() -> bool:
        """Return whether this system has such memory."""
        return hasattr(os, "memfd_create")

    @classmethod
    def of(cls, values: Array) -> SharedArray:
        """Return a shared copy of an array."""
        shared = cls(values.shape, values.dtype)
        shared.array[...] = values
        return shared

    def _attach(self, descriptor: int, dtype: np.dtype[Any], shape: tuple[int, ...], access: int = mmap.ACCESS_WRITE) -> None:
        memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=access)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.array: Array = np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)

    def __getstate__(self) -> tuple[Any, ...]:
        return os.getpid(), self._descriptor, os.fstat(self._descriptor).st_ino, self.array.dtype, self.array.shape

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        owner, number, inode, dtype, shape = state
        try:
            descriptor = os.open(f"/proc/{owner}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"process {owner}, which holds this data in memory, has ended ({error.strerror}); make the dataset again here"
            ) from None
        if os.fstat(descriptor).st_ino != inode:
            os.close(descriptor)
            raise StoreError(f"process {owner} has freed this data; keep the dataset alive while other processes use it")
        self._attach(descriptor, dtype, shape)


@dataclass
class PrivateArray:
    """A numpy array in the memory of this process, on systems without shared memory."""

    array: Array


def kept(values: Array) -> SharedArray | PrivateArray:
    """Return an array in shared memory, if this system has such memory."""
    return SharedArray.of(values) if SharedArray.possible() else PrivateArray(values)
