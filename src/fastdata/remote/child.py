"""A child process that uses object storage for one that forks: a process that has used obstore cannot be forked.

The child ends with the process that started it, even if that is killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastdata import errors
from fastdata.errors import FastDataError, MissingExtraError, RemoteError, StoreError
from fastdata.remote.wire import Message, answer_of, receive, send

__all__ = ["Child", "main"]

START = "import sys; from fastdata.remote.child import main; main(int(sys.argv[1]), sys.argv[2])"


class Child:
    """Calls the methods of an object in a child. It is safe to use from several threads, each of which has a connection of its own.

    Args:
        server: the class of the object, such as "fastdata.remote.agent:Server". Its methods return a Message, or yield some.
        arguments: those of the class, as JSON values.
        at: the URL, for messages.

    Raises:
        MissingExtraError: obstore is not installed.
        FastDataError: the class raised it.
    """

    def __init__(self, server: str, *arguments: Any, at: str = "object storage") -> None:
        if find_spec("obstore") is None:
            raise MissingExtraError("obstore")
        self._at = at
        self._owner = os.getpid()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._connections = [self._control]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), server],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C is for its parent
            )
        try:
            self._exchange(self._control, Message({"arguments": arguments}))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process. What it is doing is abandoned."""
        for connection in self._connections:
            connection.close()
        if self._owner == os.getpid():  # and not a process that was forked from it
            self._process.kill()
            self._process.wait()

    def ask(self, name: str, *arguments: Any, data: bytes | None = None) -> Message:
        """Call a method, and return its answer. data: its last argument."""
        (answer,) = self.each(name, *arguments, data=data)
        return answer

    def each(self, name: str, *arguments: Any, data: bytes | None = None) -> Iterator[Message]:
        """Call a method, and yield its answers."""
        connection = self._connection()
        asked = Message({"ask": name, "arguments": arguments, "data": data is not None}, data or b"")
        try:
            found = self._exchange(connection, asked)
            while not found.body.get("end"):
                yield found
                found = self._answer(connection)
        except FastDataError:
            raise
        except BaseException:
            del self._local.connection  # Ctrl-C, for instance: the answer would be taken for that of the next question
            connection.close()
            raise

    def _connection(self) -> socket.socket:
        try:
            found: socket.socket = self._local.connection
        except AttributeError:
            found, theirs = socket.socketpair()
            with theirs, self._lock:
                self._connections.append(found)
                self._exchange(self._control, Message({}, descriptor=theirs.fileno()))
            self._local.connection = found
        return found

    def _exchange(self, connection: socket.socket, message: Message) -> Message:
        try:
            send(connection, message)
        except OSError:
            raise self._ended() from None
        return self._answer(connection)

    def _answer(self, connection: socket.socket) -> Message:
        try:
            found = answer_of(self._process.pid, connection, f"the process that talks to {self._at}")
        except (OSError, EOFError):
            raise self._ended() from None
        if "error" in found.body:
            kind = getattr(errors, found.body["error"], StoreError)
            raise kind(found.body["message"], **({"missing": found.body["missing"]} if kind is RemoteError else {}))
        return found

    def _ended(self) -> RemoteError:
        return RemoteError(f"the process that talks to {self._at} has ended; run the same command again to continue")


def main(descriptor: int, server: str) -> None:
    """Serve the process that has the other end of a socket, until it ends or closes it."""
    control = socket.socket(fileno=descriptor)
    module, _, name = server.partition(":")
    try:
        try:
            served = getattr(import_module(module), name)(*receive(control).body["arguments"])
            send(control, Message({}))
        except FastDataError as error:
            send(control, _told(error))
        while True:
            message = receive(control)
            assert message.descriptor is not None
            threading.Thread(target=_serve, args=[served, socket.socket(fileno=message.descriptor)], daemon=True).start()
            send(control, Message({}))
    except (EOFError, OSError):
        os._exit(0)  # its parent is gone, or does not wait: nor for the requests in flight


def _serve(served: Any, connection: socket.socket) -> None:
    """Answer one thread's questions."""
    try:
        while True:
            asked = receive(connection)
            try:
                more = [bytes(asked.data)] if asked.body["data"] else []
                found = getattr(served, asked.body["ask"])(*asked.body["arguments"], *more)
                for answer in (found,) if isinstance(found, Message) else found:
                    send(connection, answer)
                send(connection, Message({"end": True}))
            except (FastDataError, OSError) as error:
                send(connection, _told(error))
            except BaseException as error:
                send(connection, _told(StoreError(f"{type(error).__name__}: {error}")))
                raise
    except (EOFError, OSError):
        connection.close()


def _told(error: Exception) -> Message:
    return Message({"error": type(error).__name__, "message": str(error), "missing": getattr(error, "missing", False)})
