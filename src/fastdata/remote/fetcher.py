"""The process that fetches for all readers of a cache on this machine. It alone uses object storage.

Readers ask it over a Unix socket; a thread answers each connection. It begins with the first reader and ends with the last one,
even if that is killed. What is asked for is fetched first; the other threads fetch what schedules say will be needed.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError, lacking
from fastdata.remote.bucket import Bucket
from fastdata.remote.cache import Cache
from fastdata.remote.downloads import Downloads, Key
from fastdata.remote.schedule import Schedules
from fastdata.remote.stores import RemoteStore, mirror
from fastdata.remote.wire import Message, is_own, receive, send
from fastdata.store.reader import raise_file_limit

__all__ = ["main"]

REQUESTS = 16  # in flight
DOWNLOADS = 4  # shards at once
SHARE = 0.01  # of a store that is read by ranges at most
LEAST = 16 << 20  # bytes that may be read by ranges of any store, if they are not a tenth of it
WORTH = 4  # how many times as large as the records their shards must be
FIRST_S = 30.0  # for the first reader to come
GRACE_S = 2.0  # without readers
POLL_S = 0.25
PAUSE_S = 0.05  # before a reader is refused


class Fetcher:
    """Answers the readers of a cache."""

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder)
        self._cache.drop_dead()
        self._pool = ThreadPoolExecutor(REQUESTS)
        self._schedules = Schedules()
        self._downloads = Downloads(self._cache, self._schedules, self._pool, DOWNLOADS)
        self._singles = ThreadPoolExecutor(REQUESTS)
        self._ranges = _Ranges()
        self._stores: dict[str, RemoteStore] = {}  # by root
        self._limits: dict[int, int] = {}  # the bytes of the cache that each process allows
        self._opened = set[int]()  # processes that have opened a store since then
        self._lock = threading.Lock()
        self._answers: dict[str, Callable[[int, dict[str, Any]], Message]] = {
            "open": self._open,
            "take": self._take,
            "records": self._records,
            "schedule": self._schedule,
        }

    def answer(self, reader: int, asked: dict[str, Any]) -> Message:
        """Return the answer to a message of a reader, which may be an error."""
        try:
            return self._answers[asked["ask"]](reader, asked)
        except FastDataError as error:
            return Message({"error": type(error).__name__, "message": str(error)})
        except OSError as error:
            why = "the disk is full" if error.errno == errno.ENOSPC else lacking(error) or error
            return Message({"error": "StoreError", "message": f"the cache {self._cache.folder}: {why}"})
        except Exception as error:  # noqa: BLE001  a reader waits for an answer, whatever happens
            return Message({"error": "RemoteError", "message": f"the fetcher failed: {type(error).__name__}: {error}"})

    def gone(self, reader: int) -> None:
        """Forget the schedule of a reader that has ended, and what its process allowed if that has ended too."""
        self._schedules.drop(reader)
        with self._lock:
            self._set_limit()

    def stop(self) -> None:
        """Remove files that are not complete."""
        self._cache.abandon()

    def _open(self, reader: int, asked: dict[str, Any]) -> Message:
        store = mirror(Bucket(asked["url"], asked["storage"]), self._cache.folder, self._pool, self._singles)
        root = os.fspath(store.root)
        with self._lock:
            self._stores[root] = store
            self._opened.add(asked["process"])
        return Message({"root": root})

    def _store(self, asked: dict[str, Any]) -> RemoteStore:
        """Return a store that a reader has opened, perhaps through a fetcher before this one."""
        with self._lock:
            root = asked["root"]
            if root not in self._stores:
                self._stores[root] = RemoteStore(Bucket(asked["url"], asked["storage"]), Path(root))
            if asked["limit"] is not None and not asked["memory"]:
                process, limit = asked["process"], asked["limit"]
                if process in self._opened:  # perhaps with more room, since there was too little
                    self._opened.discard(process)
                    self._limits.pop(process, None)
                self._limits[process] = min(limit, self._limits.get(process, limit))
                self._set_limit()
            return self._stores[root]

    def _set_limit(self) -> None:
        """Let the cache take what all processes allow."""
        self._limits = {process: limit for process, limit in self._limits.items() if Path(f"/proc/{process}").exists()}
        self._cache.asked = min(self._limits.values(), default=None)

    def _take(self, reader: int, asked: dict[str, Any]) -> Message:
        store = self._store(asked)
        key = Key(store, asked["variant"], asked["shard"], asked["memory"])
        found = self._downloads.take(key)
        return Message(
            {"file": os.fspath(store.file(key.variant, key.shard))},
            descriptor=None if found is None else found.descriptor,
            keep=found,
        )

    def _records(self, reader: int, asked: dict[str, Any]) -> Message:
        """Return single records of shards that are not in the cache: a first batch need not wait for whole shards."""
        store = self._store(asked)
        variant, wanted = asked["variant"], asked["records"]
        if not self._ranges.take(store, variant, wanted):
            return Message({"lengths": None})
        found = list(self._singles.map(lambda one: store.records(variant, *one), wanted))
        return Message(
            {"lengths": [list(map(len, records)) for records in found]}, b"".join(b"".join(records) for records in found)
        )

    def _schedule(self, reader: int, asked: dict[str, Any]) -> Message:
        store = self._store(asked)
        what = store, asked["variant"]
        self._schedules.extend(reader, asked["clock"], *what, asked["uses"], restart=asked["restart"])
        self._schedules.check_room(asked["clock"], *what, asked["most"], self._cache.limit)
        self._downloads.wake()
        return Message({})


class _Ranges:
    """Limits what is read by ranges: each such byte comes twice, once in its shard."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, str], int] = {}
        self._lock = threading.Lock()

    def take(self, store: RemoteStore, variant: str, wanted: list[tuple[int, list[int]]]) -> bool:
        """Return whether these records may be read, given as (shard, records)."""
        total = sum(shard.bytes for shard in store.variants[variant].shards)
        size = sum(store.lengths(variant, shard, records) for shard, records in wanted)
        if sum(store.file_bytes(variant, shard) for shard, _ in wanted) < WORTH * size:
            return False
        with self._lock:
            read = self._read.get((store.root, variant), 0) + size
            if read > max(total * SHARE, min(LEAST, total / 10)):
                return False
            self._read[store.root, variant] = read
            return True


class _Listener:
    """Where readers connect to a fetcher. One for whose connection there is no descriptor left is told so: it would wait for ever.

    Raises:
        OSError: another fetcher listens there.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{address}")
        self._spare = self._socket.dup()  # closed to make room for a connection that is refused

    def listen(self) -> None:
        self._socket.listen(512)
        self._socket.settimeout(POLL_S)

    def accept(self) -> socket.socket | None:
        """Return the connection of a reader; None: none came for a while, or one was refused."""
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            return None
        except OSError as error:
            if not lacking(error):
                raise
            self._refuse(lacking(error))
            return None
        connection.setblocking(True)
        return connection

    def _refuse(self, why: str) -> None:
        time.sleep(PAUSE_S)  # others may end meanwhile
        self._spare.close()
        with suppress(OSError, EOFError):  # such as: another thread took its place
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(POLL_S)
                receive(connection)
                send(connection, Message({"error": "RemoteError", "message": f"the process that fetches has no room: {why}"}))
        with suppress(OSError):
            self._spare = self._socket.dup()


class _Readers:
    """The connections of all readers."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._connections: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._count = 0

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._count += 1
            number = self._count
            self._connections[number] = connection
        threading.Thread(target=self._serve, args=(number, connection), daemon=True).start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            while True:
                send(connection, self._fetcher.answer(number, receive(connection).body))
        except (EOFError, OSError):
            pass
        finally:
            with self._lock:
                self._connections.pop(number, None)
            self._fetcher.gone(number)
            connection.close()

    def any(self) -> bool:
        """Return whether a reader is alive: a thread that fetches for one may not have noticed its end."""
        with self._lock:
            poll = select.poll()
            for connection in self._connections.values():
                if connection.fileno() >= 0:
                    poll.register(connection, select.POLLRDHUP)
            ended = {
                descriptor for descriptor, event in poll.poll(0) if event & (select.POLLHUP | select.POLLRDHUP | select.POLLERR)
            }
            return any(connection.fileno() not in ended for connection in self._connections.values())


def main(address: str, folder: str) -> None:
    """Serve the readers of a cache until none is left. `address` is that of `wire.address_of`, without its first byte."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        listener = _Listener(address)
    except OSError:
        return  # another one was faster
    raise_file_limit()
    fetcher = Fetcher(Path(folder))
    readers = _Readers(fetcher)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: _end(fetcher))
    listener.listen()
    last = time.monotonic() + FIRST_S - GRACE_S
    while time.monotonic() < last + GRACE_S:
        connection = listener.accept()
        if connection is not None and is_own(connection):
            readers.add(connection)
        elif connection is not None:
            connection.close()
        if readers.any():
            last = time.monotonic()
    _end(fetcher)


def _end(fetcher: Fetcher) -> None:
    fetcher.stop()
    os._exit(0)  # threads that wait for a server need not be waited for
