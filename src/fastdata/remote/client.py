"""What a process asks the downloader of a cache, whose folder `cache.py` describes; it is started if there is none."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastdata import errors
from fastdata._version import __version__
from fastdata.errors import MissingExtraError, RemoteError, StoreError, lacking
from fastdata.remote.cache import ERROR, READER, REQUEST, RemoteFile, write_whole
from fastdata.store.files import MANIFEST, unique
from fastdata.store.reader import raise_file_limit

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
            weakref.finalize(self, _end, self.process, self.descriptor, self._folder / self._name)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            process, _, _ = self._name.rpartition("-")
            body = {"process": process, "opened": time.monotonic_ns(), "url": url, "storage": storage, "limit": limit}
            os.write(self.descriptor, json.dumps(body).encode())
            temporary.rename(self._folder / f"{self._name}{READER}")
        except OSError as error:
            raise StoreError(f"the cache {cache} cannot be used: {lacking(error) or error.strerror}") from error

    def stem(self) -> Path:
        """Return the path of new files of this reader, without their suffix."""
        return self._folder / f"{self._name}.{next(self._numbers)}"

    def manifest(self) -> bytes:
        """Return the manifest that the store has now. Raises what `ask` does."""
        path = Path(f"{self.stem()}.{MANIFEST}")
        self.ask(RemoteFile(MANIFEST, str(path.relative_to(self._cache)), 0, ""))
        try:
            return path.read_bytes()
        finally:
            path.unlink()

    def ask(self, *files: RemoteFile) -> None:
        """Wait until these files are in the cache. The downloader is started if there is none, and again if it was killed.

        A StoreError says what went wrong there; a RemoteError also, that none can be started, or that files or memory ran out.
        """
        stem = self.stem()
        try:
            write_whole(Path(f"{stem}{REQUEST}"), json.dumps(files).encode())
            self._wait([self._cache / file.path for file in files], Path(f"{stem}{ERROR}"))
        except OSError as error:
            raise RemoteError(f"the downloader of {self._cache} cannot be asked: {lacking(error) or error}") from error
        finally:
            remove_files(self.process, stem)

    def _wait(self, paths: list[Path], error: Path) -> None:
        pause, look, starts = POLL_S[0], 0.0, 0
        while not all(path.exists() for path in paths):
            if error.exists():
                found = json.loads(error.read_bytes())
                if found["missing"] is None:
                    raise StoreError(found["message"])
                raise RemoteError(**found)
            now = time.monotonic()
            if now >= look:
                look = now + LOOK_S
                starts += _start_downloader(self._cache, self._folder)
                if starts > STARTS:
                    log = self._folder / LOG
                    raise RemoteError(f"the downloader of {self._cache} ended {STARTS} times while it was asked; {log} may say why")
            time.sleep(pause)
            pause = min(1.1 * pause, POLL_S[1])


def remove_files(process: int, stem: Path) -> None:
    """Remove the files of a process that begin so, unless this is one that was forked from it."""
    if process == os.getpid():
        for path in stem.parent.glob(f"{stem.name}.*"):
            path.unlink(missing_ok=True)


def _end(process: int, descriptor: int, stem: Path) -> None:
    """Remove the files of a session."""
    remove_files(process, stem)
    if descriptor in _locks:
        _locks.remove(descriptor)
        os.close(descriptor)


def _after_fork() -> None:
    """Close the locks that a child inherits: they are its parent's."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start_downloader(cache: Path, folder: Path) -> bool:
    """Start a downloader unless there is one, and return whether it was started. It inherits its lock."""
    raise_file_limit()
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
