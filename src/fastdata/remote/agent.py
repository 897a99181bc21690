"""The objects below a URL, for processes that fork: a child owns the client."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import xxhash

from fastdata.errors import FormatError, RemoteError, StoreError
from fastdata.remote.bucket import RANGE, Bucket
from fastdata.remote.child import Child
from fastdata.remote.store import TRIES, fetch
from fastdata.remote.url import Storage
from fastdata.remote.wire import Message
from fastdata.store.files import FileSum, file_sum, sum_of, write_atomic

__all__ = ["REQUESTS", "Agent", "Server"]

REQUESTS = 8  # useful threads of a caller


class Agent:
    """The objects below a URL. It is safe to use from several threads.

    It is a context manager. The names of objects are relative to the URL.

    Args:
        url: such as s3://bucket/folder.
        storage: options of the client, as for `Bucket`.

    Raises:
        MissingExtraError: obstore is not installed.
        RemoteError: the URL or an option is wrong. The methods raise it for what the server refuses.
    """

    def __init__(self, url: str, storage: Storage | None = None) -> None:
        self.url = url.rstrip("/")
        self._child = Child("fastdata.remote.agent:Server", self.url, dict(storage or {}), at=self.url)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process. What it is doing is abandoned."""
        self._child.close()

    def read(self, name: str, digest: str = "") -> bytes | None:
        """Return a small object; None: there is none. Two readings must be equal, or one must have this xxh3-128."""
        found = self._child.ask("read", name, digest)
        return bytes(found.data) if found.body["found"] else None

    def take(self, name: str, path: Path) -> bool:
        """Copy an object that `put_sealed` wrote to a file; return whether there is one."""
        return bool(self._child.ask("take", name, os.fspath(path)).body["found"])

    def fetch(self, name: str, total: FileSum, path: Path) -> None:
        """Copy an object of a known checksum to a file."""
        self._child.ask("fetch", name, total.bytes, total.xxh3_128, os.fspath(path))

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None: there is none."""
        found: int | None = self._child.ask("size", name).body["size"]
        return found

    def list(self, folder: str = "", most: int | None = None) -> dict[str, int]:
        """Return the size in bytes of each object in a folder, or of all; of so many at most."""
        return dict(self._child.ask("list", folder, most).body["sizes"])

    def put(self, name: str, data: bytes, *, replace: bool = False) -> bool:
        """Write an object unless there is one. Return whether it has these bytes now. replace: write it in any case."""
        return bool(self._child.ask("put", name, replace, data=data).body["same"])

    def put_sealed(self, name: str, data: bytes, *, replace: bool = False) -> bool:
        """Do the same, with a checksum after the bytes, which `take` compares."""
        return self.put(name, data + b"\n" + sum_of(data).xxh3_128.encode(), replace=replace)

    def put_file(self, name: str, path: Path, total: FileSum, *, replace: bool = False, check: bool = False) -> bool:
        """Do as `put` does with a file, whose checksum is known.

        Args:
            check: read the file before, and compare its checksum.

        Raises:
            FormatError: its checksum differs.
        """
        where = os.fspath(path)
        answer = self._child.ask("put_file", name, where, total.bytes, total.xxh3_128, replace, check)
        return bool(answer.body["same"])

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        if names:
            self._child.ask("delete", list(names))


class Server:
    """What the process does. Each method answers one question."""

    def __init__(self, url: str, storage: Storage) -> None:
        self._bucket = Bucket(url, storage, create=True)
        self._pool = ThreadPoolExecutor(REQUESTS)

    def read(self, name: str, digest: str) -> Message:
        found = self._reading(name, lambda raw: raw if digest and sum_of(raw).xxh3_128 == digest else None, twice=not digest)
        return Message({"found": found is not None}, found or b"")

    def take(self, name: str, path: str) -> Message:
        found = self._reading(name, _unsealed)
        if found is not None:
            write_atomic(Path(path), found, durable=False)
        return Message({"found": found is not None})

    def _reading(self, name: str, checked: Callable[[bytes], bytes | None], *, twice: bool = False) -> bytes | None:
        """Read an object until a check returns its contents, or two readings are equal. Return None if there is none."""
        before = None
        for _ in range(TRIES):
            try:
                raw = self._bucket.read(name)
            except RemoteError as error:
                if error.missing:
                    return None
                raise
            if (found := checked(raw)) is not None:
                return found
            if twice and raw == before:
                return raw
            before = raw
        raise RemoteError(f"{self._bucket.url}/{name} came {TRIES} times with a wrong checksum: the object is damaged")

    def fetch(self, name: str, size: int, digest: str, path: str) -> Message:
        temporary = f"{path}.{threading.get_ident()}.tmp"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            fetch(self._bucket, name, FileSum(size, digest), descriptor, self._pool)
            Path(temporary).replace(path)
        finally:
            os.close(descriptor)
            Path(temporary).unlink(missing_ok=True)
        return Message({})

    def size(self, name: str) -> Message:
        try:
            return Message({"size": self._bucket.size(name)})
        except RemoteError as error:
            if error.missing:
                return Message({"size": None})
            raise

    def list(self, folder: str, most: int | None) -> Message:
        found = []
        for each in self._bucket.list(folder):
            found.append(each)
            if len(found) == most:
                break
        return Message({"sizes": found})

    def put(self, name: str, replace: bool, data: bytes) -> Message:
        return self._put(name, data, sum_of(data), replace)

    def put_file(self, name: str, path: str, size: int, digest: str, replace: bool, check: bool) -> Message:
        total = FileSum(size, digest)
        try:
            found = file_sum(Path(path)) if check else total
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from None
        if found != total:
            raise FormatError(f"{path} is not what was written: its checksum differs")
        return self._put(name, Path(path), total, replace)

    def _put(self, name: str, data: bytes | Path, total: FileSum, replace: bool) -> Message:
        return Message({"same": self._bucket.put(name, data, replace=replace) or self._has(name, total)})

    def _has(self, name: str, total: FileSum) -> bool:
        """Return whether an object has these bytes."""
        if self._bucket.size(name) != total.bytes:
            return False
        seen = set[str]()
        while len(seen) < TRIES:
            digest = xxhash.xxh3_128()
            for start in range(0, total.bytes, RANGE):
                digest.update(self._bucket.read_range(name, start, min(RANGE, total.bytes - start)))
            if digest.hexdigest() == total.xxh3_128:
                return True
            if digest.hexdigest() in seen:  # so it was not the way here that changed it
                return False
            seen.add(digest.hexdigest())
        return False

    def delete(self, names: Sequence[str]) -> Message:
        self._bucket.delete(names)
        return Message({})


def _unsealed(raw: bytes) -> bytes | None:
    data, _, digest = raw.rpartition(b"\n")
    return data if digest == sum_of(data).xxh3_128.encode() else None
