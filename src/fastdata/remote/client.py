"""The protocol of a cache: readers and the one process that downloads for them share files, and nothing else.

    CACHEDIR.TAG                                   marks the folder: nothing is deleted in one without it
    lock                                           locked by whoever makes room for a shard
    evictions                                      8 bytes, mapped by all: how often shards were evicted
    FINGERPRINT/SUM/manifest.json ...              all of a store but its shards
    FINGERPRINT/VARIANT/shard-00007.XXH3.mdb       a shard
    NAME.tmp                                       a file on its way, locked by its downloader; verified and flushed, it is NAME
    readers/ID/downloader                          locked by the downloader for life
    readers/ID/log                                 what the downloader printed
    readers/ID/NAME.reader                         a store that a process reads, and its cache_size; locked by that process
    readers/ID/NAME.K.request, NAME.K.answer       a RemoteFile that it waits for, and what became of it; it removes both
    readers/ID/NAME.K.schedule, NAME.K.clock       which shards a Loader will read, and how far it is (prefetch.py)

ID stands for a user, a version and a set of credentials; there is one downloader for each. A reader that waits takes the lock of
the downloader if it is free, and starts one that inherits it; so two are never there. It ends when no NAME.reader is locked.
All locks are flock, which works between containers that share only the folder, and which the kernel frees, so every kill ends well:

- of a reader: the downloader takes its lock and removes its files;
- of the downloader: whoever waits starts the next one, which removes the .tmp files that nobody locks, and finds all requests;
- of both, or of the machine: the next reader starts a downloader, which does both.

Whoever evicts a shard removes its name. Readers that map it read on; when they see the count of evictions change, they unmap what
has no name any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fastdata import errors
from fastdata._version import __version__
from fastdata.errors import MissingExtraError, RemoteError, StoreError, lacking
from fastdata.store.files import unique, write_atomic

__all__ = ["ANSWER", "CLOCK", "DOWNLOADER", "READER", "REQUEST", "SCHEDULE", "RemoteFile", "Session"]

READER, REQUEST, ANSWER, SCHEDULE, CLOCK = ".reader", ".request", ".answer", ".schedule", ".clock"
DOWNLOADER, LOG = "downloader", "log"
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_", "FASTDATA_")  # variables that make clients differ
LOG_BYTES = 1 << 20
STARTS = 4  # of downloaders, while one answer is waited for
POLL_S = 0.001, 0.005  # between two looks for an answer, at first and later
LOOK_S = 0.1  # between two looks for the downloader
CODE = """import os, sys
if os.fork():
    os._exit(0)  # the other one is nobody's child, whose end somebody would have to wait for
sys.path[:0] = [sys.argv[1]]
sys.path += sys.argv[4:]
from fastdata.remote.downloader import main
main(*sys.argv[2:4])
"""


class RemoteFile(NamedTuple):
    """A file of a store: its name below the URL, its path below the cache, and its size and checksum."""

    name: str
    path: str
    bytes: int
    xxh3_128: str


_locks = set[int]()  # descriptors of sessions, and of downloaders that are being started


class Session:
    """Asks the downloader of a cache for a store and its shards, on behalf of a process; a forked child needs one of its own.

    limit: the most bytes of shards in the cache that this reader allows; None: what the disk has.
    """

    def __init__(self, cache: Path, url: str, storage: dict[str, Any], limit: int | None) -> None:
        self.process = os.getpid()
        self._cache = cache
        self._name = unique()
        self._numbers = itertools.count()
        words = [os.getuid(), __version__, sorted(item for item in os.environ.items() if item[0].startswith(CREDENTIALS))]
        try:
            (cache / "readers").mkdir(exist_ok=True)
            self._folder = cache / "readers" / hashlib.blake2b(json.dumps(words).encode(), digest_size=8).hexdigest()
            self._folder.mkdir(mode=0o700, exist_ok=True)
            temporary = self._folder / f"{self._name}.tmp"
            self.descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _locks.add(self.descriptor)
            weakref.finalize(self, _end, self.process, self.descriptor, self._folder, self._name)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            process, _, _ = self._name.rpartition("-")
            body = {"process": process, "opened": time.monotonic_ns(), "url": url, "storage": storage, "limit": limit}
            os.write(self.descriptor, json.dumps(body).encode())
            temporary.rename(self._folder / f"{self._name}{READER}")
        except OSError as error:
            raise StoreError(f"the cache {cache} cannot be used: {lacking(error) or error.strerror}") from error

    def path(self, suffix: str) -> Path:
        """Return the path of a new file of this reader."""
        return self._folder / f"{self._name}.{next(self._numbers)}{suffix}"

    def ask(self, *files: RemoteFile | None) -> list[dict[str, Any]]:
        """Wait until these files are in the cache; None: return the {"manifest": text, of a character for each byte}.

        The downloader is started if there is none, and again if it was killed. A FastDataError says what went wrong there; a
        RemoteError, that none can be started, or that files or memory ran out; a MissingExtraError, that obstore is not installed.
        """
        asked = [self.path(REQUEST) for _ in files]
        try:
            for path, file in zip(asked, files, strict=True):
                write_atomic(path, json.dumps(file).encode(), durable=False)
            answers: list[dict[str, Any]] = [self._wait(path.with_suffix(ANSWER)) for path in asked]
        except OSError as error:
            raise RemoteError(f"the downloader of {self._cache} cannot be asked: {lacking(error) or error}") from error
        finally:
            for path in asked:
                for used in (path, path.with_suffix(ANSWER)):
                    with suppress(OSError):
                        used.unlink()
        for body in answers:
            if "error" in body:
                kind = getattr(errors, body["error"], StoreError)
                raise kind(body["message"], **({"missing": True} if body.get("missing") else {}))
        return answers

    def _wait(self, answer: Path) -> Any:
        pause, look, starts = POLL_S[0], 0.0, 0
        while True:
            with suppress(FileNotFoundError):
                return json.loads(answer.read_bytes())
            now = time.monotonic()
            if now >= look:
                look = now + LOOK_S
                starts += _start_downloader(self._cache, self._folder)
                if starts > STARTS:
                    log = self._folder / LOG
                    raise RemoteError(f"the downloader of {self._cache} ended {STARTS} times while it was asked; {log} may say why")
            time.sleep(pause)
            pause = min(1.1 * pause, POLL_S[1])


def _end(process: int, descriptor: int, folder: Path, name: str) -> None:
    """Remove the files of a session."""
    if process == os.getpid():  # and not a process that was forked from it
        for path in folder.glob(f"{name}.*"):
            path.unlink(missing_ok=True)
        _locks.discard(descriptor)
        os.close(descriptor)


def _after_fork() -> None:
    """Close the locks that a child inherits: they are its parent's."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start_downloader(cache: Path, folder: Path) -> bool:
    """Start a downloader unless there is one, and return whether it was started. It inherits its lock."""
    if sys.platform != "linux":
        raise StoreError("reading from object storage needs Linux")
    lock = os.open(folder / DOWNLOADER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    _locks.add(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if find_spec("obstore") is None:
            raise MissingExtraError("obstore")
        with (folder / LOG).open("ab") as log:
            if log.tell() > LOG_BYTES:
                log.truncate(0)
            root = Path(errors.__file__).parents[1]
            words = [root, cache, folder.name, *filter(None, sys.path)]
            subprocess.run(
                [sys.executable, "-I", "-c", CODE, *map(str, words)],  # files in the working folder are no modules
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
                check=False,
            )
        return True
    except BlockingIOError:
        return False
    finally:
        _locks.discard(lock)
        os.close(lock)
