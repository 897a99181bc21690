"""Memory that a machine holds once, for all processes of a user that ask for the same bytes.

The bytes lie in a memfd, which one process fills and then seals, so that nobody can change them. Each process that asks binds
a name in the abstract namespace of Unix sockets: `KEY/PROCESS/DESCRIPTOR/INODE/NUMBER`. Nobody listens there. A newcomer reads the
names in /proc/net/unix, and opens /proc/PROCESS/fd/DESCRIPTOR of any process that holds the bytes, which the kernel allows to the
same user only. The name `KEY` alone is the lock of the process that fills the memory; others wait. The kernel removes names, lock
and memory with the last process that has them, also after `kill -9`. So there is no server, no thread and no file.

Processes with different namespaces of processes or of the network (containers) do not see each other, and hold a copy each.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import math
import mmap
import os
import re
import socket
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.system.machine import free_memory
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array

FORMAT = 1  # of names and memory: a version of fastdata that changes them counts up, so that it never attaches to others
NAMES = Path("/proc/net/unix")
POLL_S = 0.02

_numbers = itertools.count()  # a name may be left in a child when this process binds it again
_locks = set[socket.socket]()


def _free_locks() -> None:
    """Let go of the locks in a forked child, which would hold them after its parent has ended."""
    for lock in list(_locks):
        lock.close()
    _locks.clear()


os.register_at_fork(after_in_child=_free_locks)


class NodeArray(SharedArray):
    """A read-only array in memory that this machine holds once; see `once`."""

    _FLAGS, _ACCESS = os.O_RDONLY, mmap.ACCESS_READ

    def __init__(self, key: str, descriptor: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._attach(descriptor, dtype, shape)
        weakref.finalize(self, os.close, _announce(key, descriptor)).atexit = False


def once(key: str | None, shape: int | tuple[int, ...], dtype: Any, fill: Callable[[Array], None], advice: str) -> SharedArray:
    """Return an array that all processes of this user on this machine share: one fills it, the others attach to it.

    Equal keys mean equal bytes; without a key, this process and its children have an array of their own. `fill` gets the array, all
    zeros, writes the values into it, and must not keep it. If it fails, a waiting process fills the memory.
    advice: what a StoreError suggests if there is no memory for it.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod(shape)

    def checked_fill(array: Array) -> None:
        if size > (free := free_memory()):
            raise StoreError(f"the data takes {size / 1e9:.3f} GB of memory, but {free / 1e9:.3f} GB are free: {advice}")
        fill(array)

    if key is None or not size or not os.access(NAMES, os.R_OK):
        shared = SharedArray(shape, dtype)
        checked_fill(shared.array)
        return shared
    key = _digest(key, shape, dtype)
    while (lock := _bind(key)) is None:  # another process fills the memory, or looks for it
        time.sleep(POLL_S)
    _locks.add(lock)
    try:
        descriptor = _sealed(key)
        if descriptor is None:
            descriptor = _make(key, size, lambda memory: checked_fill(memory.view(dtype).reshape(shape)))
        return NodeArray(key, descriptor, dtype, shape)
    finally:
        _locks.discard(lock)
        lock.close()


def _digest(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Return the name under which this user holds some bytes in this namespace of processes."""
    space = os.stat("/proc/self/ns/pid").st_ino
    parts = repr((FORMAT, os.geteuid(), space, key, shape, dtype.descr))
    return "fastdata-" + hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def _bind(name: str) -> socket.socket | None:
    """Take a name, which is free again when the returned socket is closed. Return None if it is taken."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(f"\0{name}")
    except OSError as error:
        found.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return found


def _announce(key: str, descriptor: int) -> int:
    """Let others find the memory behind a descriptor, as long as the descriptor that is returned is open."""
    name = f"{key}/{os.getpid()}/{descriptor}/{os.fstat(descriptor).st_ino}/{next(_numbers)}"
    found = _bind(name)
    if found is None:
        raise StoreError(f"another process has taken the name {name}; give shared=False")
    return found.detach()


def _sealed(key: str) -> int | None:
    """Return a descriptor of the finished memory, which the caller closes, or None if no process has it."""
    pattern = re.compile(rf"@{key}/(\d+)/(\d+)/(\d+)/\d+$", re.MULTILINE)
    for process, number, inode in pattern.findall(NAMES.read_text(errors="replace")):
        path = f"/proc/{process}/fd/{number}"
        try:
            found = os.stat(path)
            if found.st_ino != int(inode) or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                continue
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # the process has ended, or let go of it
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{key} "):  # noqa: PTH115
            return descriptor
        os.close(descriptor)
    return None


def _make(key: str, size: int, fill: Callable[[Array], None]) -> int:
    """Fill new memory, seal it, and return a read-only descriptor."""
    descriptor = os.memfd_create(key, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        memory.madvise(mmap.MADV_DONTFORK)  # memory that a child maps for writing cannot be sealed
        fill(np.frombuffer(memory, np.uint8))
        memory.close()
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)  # Linux before 6.7 maps sealed memory from such a one only
    finally:
        os.close(descriptor)
