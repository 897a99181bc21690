"""A reader's side of a fetcher: it is started when it is needed, by whoever needs it, and again if it was killed."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastdata import errors
from fastdata.errors import MissingExtraError, RemoteError, StoreError, lacking
from fastdata.remote.cache import OPENING
from fastdata.remote.wire import Message, address_of, answer_of, is_own, peer, send

__all__ = ["ask"]

START = "import sys; from fastdata.remote.fetcher import main; main(*sys.argv[1:])"
LOG = "fetcher.log"
LOG_BYTES = 1 << 20
START_S = 30.0
TRIES = 4  # how often a fetcher may die while it answers one question

_connections = threading.local()


class _Connection(socket.socket):
    """A socket that is closed with its last user: a thread, or the process that a child was forked from."""

    def __del__(self) -> None:
        self.close()


def ask(folder: Path, body: dict[str, Any]) -> Message:
    """Ask the fetcher of a cache, and wait for its answer.

    Raises:
        FastDataError: what went wrong there.
        RemoteError: there is no fetcher, and none can be started, or files or memory ran out.
        MissingExtraError: obstore is not installed.
    """
    try:
        return _ask(folder, body)
    except OSError as error:
        raise RemoteError(f"the process that fetches for {folder} cannot be asked: {lacking(error) or error}") from error


def _ask(folder: Path, body: dict[str, Any]) -> Message:
    if body["ask"] == "open":
        _forget(folder)  # the environment may name other credentials now, and so another fetcher
    for attempt in range(TRIES):
        connection = _connected(folder)
        try:
            send(connection, Message({**body, "process": os.getpid()}))
            found = answer_of(peer(connection)[0], connection, f"the process that fetches for {folder}")
        except (OSError, EOFError) as error:
            _forget(folder)
            if lacking(error):
                raise
            time.sleep(0.1 * attempt)
            continue
        except BaseException:
            _forget(folder)  # Ctrl-C, for instance: the answer would be taken for that of the next question
            raise
        if "error" in found.body:
            raise getattr(errors, found.body["error"], StoreError)(found.body["message"])
        return found
    raise RemoteError(f"the process that fetches for {folder} ended {TRIES} times while it was asked; {folder / LOG} may say why")


def _own() -> dict[Path, socket.socket]:
    """Return the connections of this thread; a forked child has none."""
    if getattr(_connections, "process", 0) != os.getpid():
        _connections.process = os.getpid()
        _connections.opened = {}
    opened: dict[Path, socket.socket] = _connections.opened
    return opened


def _forget(folder: Path) -> None:
    if (connection := _own().pop(folder, None)) is not None:
        connection.close()


def _connected(folder: Path) -> socket.socket:
    opened = _own()
    if folder not in opened:
        opened[folder] = _connect(folder)
    return opened[folder]


def _connect(folder: Path) -> socket.socket:
    """Connect to the fetcher of a cache; start one if there is none."""
    if sys.platform != "linux":
        raise StoreError("reading from object storage needs Linux")
    address = address_of(folder)
    end = time.monotonic() + START_S
    process: subprocess.Popen[bytes] | None = None
    while time.monotonic() < end:
        connection = _Connection(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
        else:
            if is_own(connection):
                return connection
            raise StoreError(f"a process of another user answers in place of the fetcher of {folder}")
        if process is None or process.poll() is not None:
            process = _start(folder, address)
        time.sleep(0.01)
    raise RemoteError(f"the process that fetches for {folder} does not start; {folder / LOG} may say why")


def _start(folder: Path, address: str) -> subprocess.Popen[bytes]:
    if find_spec("obstore") is None:
        raise MissingExtraError("obstore")
    for ended in [process for process in _started if process.poll() is not None]:  # which is a zombie until then
        with suppress(ValueError):  # another thread has
            _started.remove(ended)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log = folder / LOG
    flags = os.O_WRONLY | os.O_APPEND | OPENING
    descriptor = os.open(log, flags | (os.O_TRUNC if log.exists() and log.stat().st_size > LOG_BYTES else 0), 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", START, address[1:], os.fspath(folder)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    _started.append(process)
    return process


_started = list[subprocess.Popen[bytes]]()


def _leave_running() -> None:
    """Keep Python from warning of a fetcher that runs for other processes."""
    for process in _started:
        if process.poll() is None:
            process.returncode = 0


atexit.register(_leave_running)
