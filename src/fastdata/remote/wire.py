"""Messages between readers and a fetcher: JSON, bytes, and perhaps a descriptor, over a Unix socket."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastdata._version import __version__
from fastdata.errors import warn_user
from fastdata.machine import is_stopped

__all__ = ["Message", "address_of", "answer_of", "is_own", "peer", "receive", "send"]

HEADER = struct.Struct("<IQ")  # bytes of the JSON, and of what follows it
PATIENCE_S = 30.0  # for an answer, before it is looked at whether the other process was stopped
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_", "FASTDATA_")  # variables that make clients differ


class Message(NamedTuple):
    """What a process says: a dict of JSON, bytes, and a descriptor or None. `keep` lives until it is sent."""

    body: dict[str, Any]
    data: bytes | bytearray = b""
    descriptor: int | None = None
    keep: Any = None


def send(connection: socket.socket, message: Message) -> None:
    """Send a message."""
    body = json.dumps(message.body).encode()
    head = HEADER.pack(len(body), len(message.data)) + body
    if message.descriptor is None:
        connection.sendall(head)
    else:
        sent = socket.send_fds(connection, [head], [message.descriptor])
        connection.sendall(head[sent:])
    if message.data:
        connection.sendall(message.data)


def receive(connection: socket.socket) -> Message:
    """Wait for a message.

    Raises:
        EOFError: the other process has ended.
        OSError: there is no room for the descriptor: too many files are open.
    """
    head, descriptors, flags, _ = socket.recv_fds(connection, HEADER.size, 1)
    descriptor = descriptors[0] if descriptors else None
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        head += _read(connection, HEADER.size - len(head)) if head else b""
        if not head:
            raise EOFError("the connection has ended")
        length, size = HEADER.unpack(head)
        return Message(json.loads(_read(connection, length)), _read(connection, size), descriptor)
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise


def answer_of(process: int, connection: socket.socket, what: str) -> Message:
    """Wait for the answer of a process, and warn the user if that was stopped.

    Args:
        process: its number.
        connection: to it.
        what: it is called in the warning.

    Raises:
        EOFError, OSError: as `receive` does.
    """
    poll, told = select.poll(), False
    poll.register(connection, select.POLLIN)
    while not poll.poll(1000 * PATIENCE_S):
        if not told and is_stopped(process):
            told = True
            warn_user(f"{what} was stopped (SIGSTOP), and is waited for; kill -CONT {process} lets it go on")
    return receive(connection)


def _read(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the connection has ended")
        view = view[count:]
    return found


def address_of(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the fetcher of a cache: one for each user, version, and set of credentials."""
    info = folder.stat()
    own = sorted(item for item in environment.items() if item[0].startswith(CREDENTIALS))
    words = [os.getuid(), info.st_dev, info.st_ino, __version__, own]
    return "\0fastdata-" + hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and its user."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end is of the same user."""
    return peer(connection)[1] == os.getuid()
