"""Memory that a machine holds once, for all processes of a user that ask for the same bytes.

The bytes lie in a memfd, which one process fills and then seals, so that nobody can change them. Each process that has it binds a
name in the abstract namespace of Unix sockets: `KEY/PROCESS/DESCRIPTOR/INODE/NUMBER`. Nobody listens there. A newcomer reads the
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.shared_memory import SharedArray

__all__ = ["NodeArray", "is_held", "once"]

Array = np.ndarray[Any, np.dtype[Any]]

FORMAT = 1  # of names and memory: a version of fastdata that changes them counts up, so that it never attaches to others
NAMES = Path("/proc/net/unix")
POLL_S = 0.02
PATIENCE_S = 300.0  # without a byte from the process that fills the memory; NFS may stall for minutes
UNSEEN_S = 10.0  # the lock is held, but by nobody whose memory this user may open

_numbers = itertools.count()  # a name may be left in a child when this process binds it again
_locks = set[socket.socket]()


def _free_locks() -> None:
    """Let go of the locks in a forked child, which would hold them after its parent has ended."""
    for lock in list(_locks):
        lock.close()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class NodeArray(SharedArray):
    """A read-only array in memory that this machine holds once; see `once`.

    It pickles as a reference, as its base does. Another process can open it while any process has it.
    """

    def __init__(self, key: str, descriptor: int, dtype: Any, shape: tuple[int, ...]) -> None:
        self._key = key
        self._attach(descriptor, np.dtype(dtype), shape, mmap.ACCESS_READ)
        weakref.finalize(self, os.close, _announce(key, descriptor)).atexit = False

    def __getstate__(self) -> tuple[Any, ...]:
        return self._key, self.array.dtype, self.array.shape

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        key, dtype, shape = state
        descriptor = _sealed(key)
        if descriptor is None:
            raise StoreError(
                "no process of this machine holds this data in memory any more; keep the dataset alive while others use it, "
                "or make the dataset again here"
            )
        NodeArray.__init__(self, key, descriptor, dtype, shape)


def once(key: str | None, shape: int | tuple[int, ...], dtype: Any, fill: Callable[[Array], None], what: str) -> SharedArray:
    """Return an array that all processes of this user on this machine share: one fills it, the others attach to it.

    Args:
        key: what the bytes are; equal keys mean equal bytes. None: this process and its children have an array of their own.
        shape: of the array.
        dtype: of the array.
        fill: writes the values into the array that it gets, which begins with zeros. It must not keep the array.
        what: the name of the data in a message.

    Raises:
        StoreError: shared memory is not available, or the process that fills the memory does not go on.
        Exception: what `fill` raises; a process that waits then fills the memory itself.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod(shape)
    if key is None or not size or not _possible():
        return _private(shape, dtype, fill)
    key = _digest(key, shape, dtype)
    waiting = _Waiting(what)
    while True:
        descriptor = _sealed(key)
        if descriptor is not None:
            return NodeArray(key, descriptor, dtype, shape)
        lock = _lock(key)
        if lock is not None:
            try:
                descriptor = _sealed(key)  # another process may have finished between both
                if descriptor is None:
                    descriptor = _make(key, size, lambda memory: fill(memory.view(dtype).reshape(shape)))
                return NodeArray(key, descriptor, dtype, shape)
            finally:
                _locks.discard(lock)
                lock.close()
        if waiting.in_vain(key):
            return _private(shape, dtype, fill)
        time.sleep(POLL_S)


def is_held(key: str | None, shape: int | tuple[int, ...], dtype: Any) -> bool:
    """Return whether a process has this memory already, or fills it: `once` then needs none."""
    if key is None or not _possible():
        return False
    shape = (shape,) if isinstance(shape, int) else shape
    found = False
    for _, descriptor in _holders(_digest(key, shape, np.dtype(dtype))):
        os.close(descriptor)
        found = True
    return found


def _possible() -> bool:
    return SharedArray.possible() and os.access(NAMES, os.R_OK)


def _private(shape: tuple[int, ...], dtype: np.dtype[Any], fill: Callable[[Array], None]) -> SharedArray:
    """Return an array of this process and its children alone."""
    shared = SharedArray(shape, dtype)
    fill(shared.array)
    return shared


def _digest(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Return the name of some bytes, held by this user in this namespace of processes."""
    space = os.stat("/proc/self/ns/pid").st_ino
    parts = repr((FORMAT, os.geteuid(), space, key, shape, dtype.descr))
    return "fastdata-" + hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def _bind(name: str) -> socket.socket | None:
    """Take a name, which is free again when the socket is closed; None: it is taken."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(f"\0{name}")
    except OSError as error:
        found.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return found


def _lock(key: str) -> socket.socket | None:
    lock = _bind(key)
    if lock is not None:
        _locks.add(lock)
    return lock


def _announce(key: str, descriptor: int) -> int:
    """Let others find the memory behind a descriptor, as long as the descriptor that is returned is open."""
    name = f"{key}/{os.getpid()}/{descriptor}/{os.fstat(descriptor).st_ino}/{next(_numbers)}"
    found = _bind(name)
    if found is None:
        raise StoreError(f"another process has taken the name {name}; give shared=False")
    return found.detach()


def _holders(key: str) -> Iterator[tuple[int, int]]:
    """Yield each process that has the memory, or fills it, with a new descriptor of it, which the caller closes."""
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
            yield int(process), descriptor
        else:
            os.close(descriptor)


def _sealed(key: str) -> int | None:
    """Return a descriptor of the finished memory; None: nobody has it."""
    for _, descriptor in _holders(key):
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
            return descriptor
        os.close(descriptor)
    return None


def _make(key: str, size: int, fill: Callable[[Array], None]) -> int:
    """Fill new memory, seal it, and return a read-only descriptor. While it is being filled, others can see how far it is."""
    descriptor = os.memfd_create(key, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        name = _announce(key, descriptor)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
            memory.madvise(mmap.MADV_DONTFORK)  # memory that a child maps for writing cannot be sealed
            fill(np.frombuffer(memory, np.uint8))
            memory.close()
        finally:
            os.close(name)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)  # Linux before 6.7 maps sealed memory from such a one only
    finally:
        os.close(descriptor)


class _Waiting:
    """Waits for another process that fills the memory, as long as it goes on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._state: Any = None
        self._since = time.monotonic()

    def in_vain(self, key: str) -> bool:
        """Return whether nobody is seen to fill the memory, though its lock is held.

        Raises:
            StoreError: somebody is, but has not gone on for a long time.
        """
        state = []
        for process, descriptor in _holders(key):
            state.append((process, os.fstat(descriptor).st_blocks))
            os.close(descriptor)
        now = time.monotonic()
        if state != self._state:
            self._state, self._since = state, now
        if state and now - self._since > PATIENCE_S:
            raise StoreError(
                f"process {state[0][0]} loads {self._what} for all processes of this machine, but has not gone on for "
                f"{PATIENCE_S:.0f} s: see what it waits for, or end it; shared=False gives each process its own copy"
            )
        return not state and now - self._since > UNSEEN_S
