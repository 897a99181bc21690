"""A server of a folder that fails as told: it counts requests, delays answers, and answers with errors or damaged bodies."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

FAULTS = ("500", "503", "reset", "cut", "stall", "flip")
LATE_S = 3.0  # shorter than that
STALL_S = 20.0  # longer than the client waits for bytes
ERRORS = {"500": "InternalError", "503": "SlowDown", "403": "ExpiredToken", "404": "NoSuchKey"}


class FaultServer:
    """Serves GET and HEAD with ranges, and lists, as S3 does below /bucket/, on a port of its own.

    Attributes:
        chance: the probability of each fault of `faults`, for each GET of something whose path has `of` in it.
        always: the answer to each GET of a path with this text in it: a fault, "403", "404" or "late".
        delay_s: before each answer.
        rate: bytes a second of each connection; 0: as fast as possible.
        slow_from: answers of so many bytes or more come a thousand times as slowly as one would wait.
        requests, nbytes: GETs and bytes of each path; LIST counts the parts of listings.
        part: names in a part of a listing.
        made: the faults that were made.
    """

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.faults: tuple[str, ...] = FAULTS
        self.chance = 0.0
        self.of = ""
        self.always: dict[str, str] = {}
        self.delay_s = 0.0
        self.rate = 0
        self.slow_from = 1 << 60
        self.part = 1000
        self.requests: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._connections = set[socket.socket]()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._begin(self._accept)

    def _begin(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End all connections and threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        with self._lock:
            self._connections.add(connection)
        try:
            while line := file.readline().decode():
                headers = {}
                while text := file.readline().decode().strip():
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                verb, path, _ = line.split(" ", 2)
                path, _, query = path.partition("?")
                if not self._answer(connection, verb, unquote(path).strip("/"), parse_qs(query), headers.get("range")):
                    return
        except OSError:
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            file.close()
            connection.close()

    def _choose(self, path: str) -> str:
        for text, fault in self.always.items():
            if text in path:
                return fault
        if self.of not in path:
            return ""
        place = self._random.random()
        return self.faults[int(place / self.chance)] if place < self.chance * len(self.faults) else ""

    def _listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """Return a part of the list of objects below a prefix, in the order of their bytes."""
        prefix, after = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
        keys = (file.relative_to(self.root / bucket).as_posix() for file in (self.root / bucket).rglob("*") if file.is_file())
        found = sorted((key for key in keys if key.startswith(prefix)), key=os.fsencode)
        left = [key for key in found if key > after]
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{(self.root / bucket / key).stat().st_size}</Size>"
            f"<LastModified>2026-11-22T08:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in left[: self.part]
        ]
        more = len(left) > self.part
        token = f"<NextContinuationToken>{escape(left[self.part - 1])}</NextContinuationToken>" if more else ""
        head = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return f"<ListBucketResult>{head}{''.join(rows)}</ListBucketResult>".encode()

    def _answer(self, connection: socket.socket, verb: str, path: str, query: dict[str, list[str]], asked: str | None) -> bool:
        """Answer a request; return whether the connection goes on."""
        time.sleep(self.delay_s)
        if "list-type" in query:
            bucket, path = path, "LIST"
        with self._lock:
            fault = self._choose(path) if verb == "GET" else ""
            self.made[fault] += 1
            if verb == "GET":
                self.requests[path] += 1
        file = self.root / path
        if not fault and path == "LIST":
            body = self._listing(bucket, query)
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return True
        if not fault and not file.is_file():
            fault = "404"
        if fault in ERRORS:
            body = f"<Error><Code>{ERRORS[fault]}</Code></Error>".encode()
            connection.sendall(
                f"HTTP/1.1 {fault} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + (body if verb == "GET" else b"")
            )
            return True
        if fault == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        size = file.stat().st_size
        start, stop = 0, size
        if asked:
            first, last = asked.partition("=")[2].split("-")
            start, stop = int(first), min(int(last) + 1, size) if last else size
        with file.open("rb") as opened:
            opened.seek(start)
            body = bytearray(opened.read(stop - start))
        head = f"HTTP/1.1 {'206 Partial Content' if asked else '200 OK'}\r\nContent-Length: {len(body)}\r\nAccept-Ranges: bytes\r\n"
        head += f'ETag: "{_tag(file)}"\r\nLast-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n'
        head += f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n\r\n" if asked else "\r\n"
        if verb == "HEAD":
            connection.sendall(head.encode())
            return True
        if fault == "flip" and body:
            body[self._random.randrange(len(body))] ^= 1 << self._random.randrange(8)
        if fault in ("cut", "stall"):
            body = body[: len(body) // 2]
        connection.sendall(head.encode())
        if fault == "late":
            self._closed.wait(LATE_S)
        if len(body) >= self.slow_from:
            self._closed.wait(STALL_S)
        self._send(connection, body)
        with self._lock:
            self.nbytes[path] += len(body)
        if fault == "stall":
            self._closed.wait(STALL_S)
        return fault not in ("cut", "stall")

    def _send(self, connection: socket.socket, body: bytearray) -> None:
        step = max(self.rate // 50, 1) if self.rate else len(body) or 1
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            if self.rate:
                time.sleep(step / self.rate)


def _tag(file: Path) -> str:
    info = file.stat()
    return _md5(file, info.st_size, info.st_mtime_ns)


@cache
def _md5(file: Path, size: int, time_ns: int) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


@contextmanager
def serving(root: Path, seed: int = 0) -> Iterator[FaultServer]:
    """Serve a folder."""
    server = FaultServer(root, seed)
    try:
        yield server
    finally:
        server.close()
