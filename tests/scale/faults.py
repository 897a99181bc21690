"""An HTTP server of a folder that fails as told: it counts requests, delays answers, and answers with errors or damaged bodies.

python tests/scale/faults.py FOLDER [CHANCE [RATE]]        serves S3 until its standard input ends; prints the port
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import struct
import sys
import threading
import time
import weakref
from collections import Counter
from contextlib import closing, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

FAULTS = ("500", "503", "reset", "cut", "stall", "flip")
LIES = ("short", "shift", "whole", "elsewhere", "untagged")  # answers to a range that are no answers to it
LATE_S = 3.0  # shorter than that
STALL_S = 20.0  # longer than the client waits for bytes
ERRORS = {"500": "InternalError", "503": "SlowDown", "403": "ExpiredToken", "404": "NoSuchKey"}
WRITE_FAULTS = (*FAULTS, "twice")
TAG = 'ETag: "tag"\r\n'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(headers.get("content-length", 0)))
        if not self.server.answer(self.connection, self.command, unquote(path).lstrip("/"), query, headers, body):
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, *_: Any) -> None:
        pass


class FaultServer(ThreadingHTTPServer):
    """A server on a port of its own, of files; and of S3, whose buckets are folders of the folder. Multipart uploads and lists work
    as Amazon's do; signatures are not checked, checksums of bodies are.

    Attributes:
        chance: the probability of each fault of `faults`, for each GET of something whose path has `of` in it.
        always: the answer to each GET of a path with this text in it: a fault, "403", "404" or "late".
        delay_s: before each answer.
        rate: bytes a second of each connection; 0: as fast as possible.
        stall_s: how long an answer stalls before the connection ends.
        requests, nbytes: GETs and bytes of each path.
        made: the faults that were made.
        page: names in one answer to a list; `requests` counts these answers as "LIST".
        writes: objects, or parts of them, that came, by path.
        write_chance: the probability of each fault for each write: as for a GET, but "cut", "stall" and "twice" come after the
            object was written: the answer is lost, comes late, or is that to a second request.
    """

    daemon_threads = False  # `server_close` waits for them
    request_queue_size = 128

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: tuple[str, ...] = FAULTS
        self.chance = 0.0
        self.of = ""
        self.always: dict[str, str] = {}
        self.delay_s = 0.0
        self.rate = 0
        self.stall_s = STALL_S
        self.requests: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.page = 1000
        self.writes: Counter[str] = Counter()
        self.write_chance = 0.0
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.connections = weakref.WeakSet[socket.socket]()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End all answers, and take no more requests."""
        self._closed.set()
        self.shutdown()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that have gone."""

    def _choose(self, path: str) -> str:
        for text, fault in self.always.items():
            if text in path and fault != "twice":  # which is one of writes
                return fault
        if self.of not in path:
            return ""
        place = self._random.random()
        return self.faults[int(place / self.chance)] if place < self.chance * len(self.faults) else ""

    def answer(self, connection: Any, verb: str, path: str, query: str, headers: dict[str, str], body: bytes) -> bool:
        """Answer a request; return whether the connection goes on."""
        time.sleep(self.delay_s)
        asked = parse_qs(query, keep_blank_values=True)
        if verb in ("GET", "HEAD") and "list-type" not in asked:
            return self._read(connection, verb, path, headers)
        if not (self.root / path.partition("/")[0]).is_dir():
            _say(connection, "404", _error("NoSuchBucket"))
            return True
        if verb != "GET":
            return self._write(connection, verb, path, asked, headers, body)
        with self._lock:
            self.requests["LIST"] += 1
        fault = self.always.get("LIST", "")
        _say(connection, fault or "200", _error(ERRORS[fault]) if fault else self._list(path, asked))
        return True

    def _read(self, connection: Any, verb: str, path: str, headers: dict[str, str]) -> bool:
        with self._lock:
            fault = self._choose(path) if verb == "GET" else ""
            self.made[fault] += 1
            if verb == "GET":
                self.requests[path] += 1
        file = self.root / path
        if not fault and not file.is_file():
            fault = "404"
        if fault in ERRORS:
            _say(connection, fault, _error(ERRORS[fault]) if verb == "GET" else b"")
            return True
        if fault == "reset":
            _reset(connection)
            return False
        size = file.stat().st_size
        start, stop = 0, size
        if asked := headers.get("range"):
            first, last = asked.partition("=")[2].split("-")
            start, stop = int(first), min(int(last) + 1, size) if last else size
        if fault == "whole":
            asked, start, stop = None, 0, size
        with file.open("rb") as opened:
            opened.seek(start + (fault == "shift"))
            content = bytearray(opened.read(stop - start - (fault == "short" and stop > start)))
        if fault == "elsewhere":
            start, stop = start + 1, stop + 1
        status = "206 Partial Content" if asked else "200 OK"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nAccept-Ranges: bytes\r\n"
        if fault != "untagged":
            head += f'ETag: "{_md5(file, size, file.stat().st_mtime_ns)}"\r\n'
        head += "Last-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n"
        head += f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n\r\n" if asked else "\r\n"
        if verb == "HEAD":
            connection.sendall(head.encode())
            return True
        if fault == "flip" and content:
            content[self._random.randrange(len(content))] ^= 1 << self._random.randrange(8)
        if fault in ("cut", "stall"):
            content = content[: len(content) // 2]
        connection.sendall(head.encode())
        if fault == "late":
            self._closed.wait(LATE_S)
        self._send(connection, content)
        with self._lock:
            self.nbytes[path] += len(content)
        if fault == "stall":
            self._closed.wait(self.stall_s)
        return fault not in ("cut", "stall")

    def _send(self, connection: socket.socket, body: bytearray) -> None:
        step = max(self.rate // 50, 1) if self.rate else len(body) or 1
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            if self.rate:
                time.sleep(step / self.rate)

    def _write(
        self, connection: Any, verb: str, path: str, asked: dict[str, list[str]], headers: dict[str, str], body: bytes
    ) -> bool:
        with self._lock:
            self.writes[path] += verb == "PUT"
            place = self._random.random()
            fault = next((fault for text, fault in self.always.items() if text in path), "")
            if not fault and place < self.write_chance * len(WRITE_FAULTS):
                fault = WRITE_FAULTS[int(place / self.write_chance)]
            self.made[f"{fault} of a write" if fault else ""] += 1
        if fault in ERRORS:
            _say(connection, fault, _error(ERRORS[fault]))
            return True
        if fault == "reset":
            _reset(connection)
            return False
        if fault == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        status, answer, more = self._store(verb, path, asked, headers, body)
        if fault == "twice":
            status, answer, more = self._store(verb, path, asked, headers, body)
        if fault == "stall":
            self._closed.wait(self.stall_s)
        if fault not in ("cut", "stall"):
            _say(connection, status, answer, more)
        return fault not in ("cut", "stall")

    def _store(
        self, verb: str, path: str, asked: dict[str, list[str]], headers: dict[str, str], body: bytes
    ) -> tuple[str, bytes, str]:
        """Carry out a request; return the status, the body and more headers of its answer."""
        told = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        if told != "UNSIGNED-PAYLOAD" and told != hashlib.sha256(body).hexdigest():
            return "400", _error("XAmzContentSHA256Mismatch"), ""
        if verb == "POST" and "uploads" in asked:
            with self._lock:
                number = f"u{len(self._uploads)}"
                self._uploads[number] = {}
            body = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>".encode()
            return "200", body, ""
        if "uploadId" in asked:
            number = asked["uploadId"][0]
            if number not in self._uploads:
                return "404", _error("NoSuchUpload"), ""
            if verb == "PUT":
                self._uploads[number][int(asked["partNumber"][0])] = body
                return "200", b"", TAG
            parts = self._uploads.pop(number)
            if verb == "DELETE":
                return "204", b"", ""
            self._put(path, b"".join(parts[k] for k in sorted(parts)))
            return "200", b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>", TAG
        self._put(path, body)
        return "200", b"", TAG

    def _put(self, path: str, body: bytes) -> None:
        temporary = self.root / f"{threading.get_ident()}.tmp"
        temporary.write_bytes(body)
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(self.root / path)

    def _list(self, path: str, asked: dict[str, list[str]]) -> bytes:
        """List objects, a page at a time."""
        root = self.root / path.strip("/")
        prefix, after = asked.get("prefix", [""])[0], asked.get("continuation-token", [""])[0]
        folder = root / prefix.rpartition("/")[0]
        names = sorted(file.relative_to(root).as_posix() for file in folder.rglob("*") if file.is_file())
        names = [name for name in names if name.startswith(prefix) and name > after]
        page = names[: self.page]
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{(root / name).stat().st_size}</Size><ETag>x</ETag>"
            "<LastModified>2026-11-22T08:00:00.000Z</LastModified></Contents>"
            for name in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(names) > len(page) else ""
        cut = str(bool(more)).lower()
        return f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{more}{found}</ListBucketResult>".encode()


def _say(connection: socket.socket, status: str, body: bytes = b"", more: str = "") -> None:
    connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())


@cache
def _md5(file: Path, size: int, time_ns: int) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def serving(root: Path) -> closing[FaultServer]:
    """Serve a folder."""
    return closing(FaultServer(root))


def storing(root: Path) -> closing[FaultServer]:
    """Serve S3 with a bucket called bucket."""
    (root / "bucket").mkdir(parents=True, exist_ok=True)
    return serving(root)


if __name__ == "__main__":
    with storing(Path(sys.argv[1])) as started:
        started.chance = started.write_chance = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
        started.rate = int(sys.argv[3]) if len(sys.argv) > 3 else 0
        sys.stdout.write(f"{started.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()
