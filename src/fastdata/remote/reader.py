"""Records of a store in object storage, read from shards in a cache. The cache's downloader fetches them, as `cache.py` says.

A Loader writes the shards that it will read, and when, into a file, by which the downloader fetches and evicts. Such a schedule is
JSON: [[a RemoteFile, [[first, last], ...]], ...]: a shard is used from one sample to another, counted from the beginning of the
schedule. A file is replaced as a whole. The clock beside it is an int64, which the Loader changes in place: how many samples its
workers have read.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import mmap
import os
import stat
import subprocess
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata._version import __version__
from fastdata.errors import FormatError, MissingExtraError, RemoteError, StoreError, lacking, warn_user
from fastdata.remote.bucket import Storage, is_url, local_path, parse_bytes, scheme
from fastdata.remote.cache import (
    CLOCK,
    ERROR,
    EVICTIONS,
    READER,
    REQUEST,
    SCHEDULE,
    RemoteFile,
    ShardCache,
    map_number,
    write_whole,
)
from fastdata.store.files import MANIFEST, FileSum, file_sum, shard_file, sum_of, unique
from fastdata.store.manifest import Variant, parse_manifest, read_manifest
from fastdata.store.reader import RecordIndex, ShardReader, raise_file_limit
from fastdata.store.store import StoreLocation, Use
from fastdata.types import Array, StrPath

SAMPLES_MORE = 1 << 16  # scheduled before the first batch, and each time that more batches are made
MAX_SCHEDULED_SAMPLES = 1 << 20  # scheduled ahead
TRIES = 20  # to map a shard before it is evicted again
DOWNLOADER, LOG = "downloader", "log"
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_", "FASTDATA_")  # variables that make clients differ
STARTS = 4  # of downloaders, while one answer is waited for
POLL_S = 0.002  # between two looks for an answer
LOOK_S = 0.1  # between two looks for the downloader
CODE = """import os, sys
if os.fork():
    os._exit(0)  # the other one is nobody's child, whose end somebody would have to wait for
sys.path[:0] = [sys.argv[1]]
sys.path += sys.argv[4:]
from fastdata.remote.downloader import main
main(*sys.argv[2:4])
"""


class Session:
    """Asks the downloader of a cache for a store and its shards, on behalf of a process; a forked child needs one of its own.

    limit: the most bytes of shards in the cache that this reader allows, or None for what the disk has.
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
            weakref.finalize(self, remove_files, self.process, self._folder / self._name)
            temporary = self._folder / f"{self._name}.tmp"
            file = temporary.open("xb", buffering=0)
            weakref.finalize(self, file.close)
            fcntl.lockf(file, fcntl.LOCK_EX)  # which a forked child does not inherit
            file.write(json.dumps({"url": url, "storage": storage, "limit": limit}).encode())
            temporary.rename(self._folder / f"{self._name}{READER}")
        except OSError as error:
            raise StoreError(f"the cache {cache} cannot be used: {lacking(error) or error.strerror}") from error

    def stem(self) -> Path:
        """Return the path of new files of this reader, without their suffix."""
        return self._folder / f"{self._name}.{next(self._numbers)}"

    def manifest(self) -> bytes:
        """Return the current manifest of the store. Raises the errors of `ask`."""
        path = Path(f"{self.stem()}.{MANIFEST}")
        self.ask(RemoteFile(MANIFEST, str(path.relative_to(self._cache)), 0, ""))
        return path.read_bytes()

    def ask(self, *files: RemoteFile) -> None:
        """Wait until these files are in the cache. The downloader is started if there is none, and again if it was killed.

        Raise a RemoteError if the downloader fails or cannot be started, or if file descriptors or memory run out.
        """
        stem = self.stem()
        try:
            write_whole(Path(f"{stem}{REQUEST}"), json.dumps(files).encode())
            self._wait([self._cache / file.path for file in files], Path(f"{stem}{ERROR}"))
        except OSError as error:
            raise RemoteError(f"cannot reach the downloader of {self._cache}: {lacking(error) or error}") from error
        finally:
            remove_files(self.process, stem)

    def _wait(self, paths: list[Path], error: Path) -> None:
        look, starts = 0.0, 0
        while not all(path.exists() for path in paths):
            if error.exists():
                raise RemoteError(**json.loads(error.read_bytes()))
            now = time.monotonic()
            if now >= look:
                look = now + LOOK_S
                starts += _start_downloader(self._cache, self._folder)
                if starts > STARTS:
                    log = self._folder / LOG
                    raise RemoteError(f"the downloader of {self._cache} ended {STARTS} times during a request; {log} may say why")
            time.sleep(POLL_S)


def remove_files(process: int, stem: Path) -> None:
    """Remove the files of a process whose paths begin with `stem`, unless this process was forked from it."""
    if process == os.getpid():
        for path in stem.parent.glob(f"{stem.name}.*"):
            path.unlink(missing_ok=True)


_starting = set[int]()  # descriptors of the locks of downloaders that are being started


def _start_downloader(cache: Path, folder: Path) -> bool:
    """Start a downloader, unless one runs; it inherits the lock. Return whether it was started."""
    raise_file_limit()
    lock = os.open(folder / DOWNLOADER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    _starting.add(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if find_spec("obstore") is None:
            raise MissingExtraError("obstore")
        with (folder / LOG).open("wb") as log:
            words = [CODE, Path(__file__).parents[2], cache, folder.name, *filter(None, sys.path)]
            command = [sys.executable, "-I", "-c", *map(str, words)]  # files in the working folder are no modules
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            subprocess.run(command, **streams, pass_fds=[lock], start_new_session=True, check=False)
        return True
    except BlockingIOError:
        return False
    finally:
        _starting.discard(lock)
        os.close(lock)


class RemoteStore(StoreLocation):
    """A store in object storage. A cache holds all its files but the shards, which are fetched when needed.

    limit: the most bytes of shards in the cache, or None for what the disk has.
    root: the folder of the store's other files, or None to copy them into the cache now.
    """

    def __init__(self, url: str, storage: dict[str, Any], cache: StrPath, limit: int | None, root: Path | None = None) -> None:
        self.url, self.storage, self.limit, self.cache = url, storage, limit, Path(cache).absolute()
        ShardCache(self.cache)
        self._session: Session | None = None
        self.root = self._copy_tables() if root is None else root

    def _copy_tables(self) -> Path:
        """Copy all of the store but its shards into the cache, unless it is there; return its folder."""
        try:
            raw = self.session.manifest()
        except RemoteError as error:
            hint = "; prepare a store there, or publish one there" if error.missing else ""
            raise RemoteError(f"{error}{hint}", missing=error.missing) from None
        manifest = parse_manifest(raw, f"{self.url}/{MANIFEST}")
        folder = f"{manifest.fingerprint}/{xxhash.xxh3_64_hexdigest(raw)}"
        root = self.cache / folder
        files = [RemoteFile(name, f"{folder}/{name}", total.bytes, total.xxh3_128) for name, total in manifest.files.items()]
        self.session.ask(*(file for file in files if not _has(self.cache / file.path, manifest.files[file.name])))
        if not _has(root / MANIFEST, sum_of(raw)):
            write_whole(root / MANIFEST, raw)
        return root

    @cached_property
    def shards(self) -> dict[str, list[RemoteFile]]:
        """The shards of each variant."""
        shards = dict[str, list[RemoteFile]]()
        for variant in read_manifest(self.root).variants:
            for k, total in enumerate(variant.shards):
                path = f"{self.root.parent.name}/{variant.name}/shard-{k:05d}.{total.xxh3_128}.mdb"
                file = RemoteFile(shard_file(variant.name, k), path, total.bytes, total.xxh3_128)
                shards.setdefault(variant.name, []).append(file)
        return shards

    @property
    def session(self) -> Session:
        """The session in which this process asks for the store."""
        if self._session is None or self._session.process != os.getpid():
            self._session = Session(self.cache, self.url, self.storage, self.limit)
        return self._session

    def __fspath__(self) -> str:
        return os.fspath(self.root)

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> Any:
        return RemoteStore, (self.url, self.storage, self.cache, self.limit, self.root)

    def reader(self, variant: Variant, index: RecordIndex, *, check: bool) -> CachedReader:
        return CachedReader(index, CachedShards(self, variant.name), check=check)

    def check(self, variant: Variant, shard: int) -> None:
        shards = CachedShards(self, variant.name)
        shards.path(shard).unlink(missing_ok=True)  # what is in a cache says nothing of the bucket
        shards.open(shard).release()
        shards.path(shard).unlink(missing_ok=True)


_readers = weakref.WeakSet["CachedReader"]()


def _unmap_all() -> None:
    for reader in list(_readers):
        reader._opened = {}  # a shard with views stays mapped until they are gone


def _after_fork() -> None:
    """Let go of the locks of shards and of a downloader, which a child inherits."""
    _unmap_all()
    while _starting:
        os.close(_starting.pop())


os.register_at_fork(after_in_child=_after_fork)


def _has(path: Path, total: FileSum) -> bool:
    """Return whether the cache has a file. A damaged file is removed."""
    if not path.is_symlink() and not path.exists():
        return False
    with suppress(OSError):
        if file_sum(path) == total:
            return True
    _remove(path)
    return False


def _remove(path: Path) -> None:
    """Remove a damaged file, unless another process has."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FormatError(f"{path} is damaged, and fastdata cannot delete it ({error.strerror}): delete it yourself") from None
    warn_user(f"{path} is not what was written there: it is fetched again; see whether the disk is healthy")


class CachedShards:
    """The shards of a variant, which are fetched into the cache when they are opened."""

    def __init__(self, store: RemoteStore, variant: str) -> None:
        self.store, self._variant = store, variant

    def path(self, shard: int) -> Path:
        """Return where a shard lies in the cache."""
        return self.store.cache / self.store.shards[self._variant][shard].path

    def describe(self, shard: int) -> str:
        return f"{self.store.url}/{self.store.shards[self._variant][shard].name}"

    def advice(self, shard: int) -> str:
        return (
            f"remove {self.path(shard)}, a copy in the cache, to have it fetched again; if that does not help, "
            f"run fastdata verify {self.store.url}"
        )

    def open(self, shard: int) -> memoryview:
        """Map a shard and hold a shared lock. A damaged shard is removed, and fetched again."""
        raise_file_limit()
        file = self.store.shards[self._variant][shard]
        path = self.store.cache / file.path
        for _ in range(TRIES):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                _unmap_all()  # or the cache may have no room, while this process waits
                self.store.session.ask(file)
                continue
            except OSError as error:
                raise StoreError(f"{path} cannot be opened: {lacking(error) or error.strerror}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                info = os.fstat(descriptor)
                if info.st_nlink and stat.S_ISREG(info.st_mode) and info.st_size == file.bytes:
                    mapped = mmap.mmap(descriptor, file.bytes, prot=mmap.PROT_READ)  # has a descriptor, and its lock, of its own
                    mapped.madvise(mmap.MADV_RANDOM)
                    os.utime(descriptor, ns=(time.time_ns(), info.st_mtime_ns))
                    return memoryview(mapped)
            finally:
                os.close(descriptor)
            if info.st_nlink:
                _remove(path)
        raise StoreError(f"{path} was evicted {TRIES} times before use: enlarge cache_size or the disk")


class CachedReader(ShardReader):
    """Random access to the records of one variant of a remote store. A shard is fetched when it is first read."""

    def __init__(self, index: RecordIndex, shards: CachedShards, *, check: bool = False) -> None:
        super().__init__(index, shards, check=check)
        self._evictions = map_number(shards.store.cache / EVICTIONS)
        self._seen = self._evictions[0]
        _readers.add(self)

    def get(self, row: int) -> memoryview:
        """Return the bytes of a record, which stay valid for as long as they are held."""
        if self._evictions[0] != self._seen:
            self._seen = self._evictions[0]
            self._opened = {shard: view for shard, view in self._opened.items() if self._shards.path(shard).exists()}
        try:
            return super().get(row)
        except FormatError:
            pass
        shard = bisect_right(self._starts, row) - 1
        self._opened.pop(shard, None)
        _remove(self._shards.path(shard))
        return super().get(row)


class ScheduleWriter:
    """Tells the downloaders of a dataset's remote stores which shards one rank will read, in the order of its samples.

    Args:
        uses: returns what a dataset reads of remote stores for the samples of an epoch.
        chunk: returns some ten thousand of this rank's samples from a position on, or none while they are unknown, and the epoch
            and the position after them.
    """

    def __init__(self, uses: Callable[[int, Array], Sequence[Use]], chunk: Callable[[int, int], tuple[Array, int, int]]) -> None:
        self._uses, self._chunk = uses, chunk
        self.restart(0, 0)

    def restart(self, epoch: int, start: int) -> None:
        """Begin a new schedule at a position of an epoch; `extend` writes it."""
        self._files: dict[RemoteStore, _ScheduleFile] = {}
        self._at = [epoch, start]
        self._scheduled = self._drawn = self._at_once = 0

    def extend(self, epoch: int, at_once: int) -> None:
        """Write or begin the schedule: some 65,000 samples more, at most a million ahead, and not beyond the next epoch's end.

        at_once: how many samples all workers read at a time. A StoreError says that the cache is too small for them.
        """
        self._at_once, is_new = at_once, not self._scheduled
        until = min(self._scheduled + SAMPLES_MORE, self._drawn + MAX_SCHEDULED_SAMPLES)
        while self._scheduled < until and self._at[0] <= epoch + 1:
            ids, *after = self._chunk(*self._at)
            if not len(ids):
                break
            for use in self._uses(after[0], ids):
                if isinstance(use.store, RemoteStore):
                    if use.store not in self._files:
                        self._files[use.store] = _ScheduleFile(use.store)
                    self._files[use.store].add(use.variant, use.samples + self._scheduled, use.shards, at_once)
            self._scheduled += len(ids)
            self._at = after
        self.draw(0)
        for file in self._files.values():
            if is_new:
                file.check_room(at_once)
            file.write()

    def draw(self, samples: int) -> None:
        """Say that a batch of so many samples is handed to the workers."""
        self._drawn += samples
        for file in self._files.values():
            file.clock[0] = max(self._drawn - self._at_once, 0)


class _ScheduleFile:
    """One Loader's planned reads of one store, in files for its downloader that are removed with this object."""

    def __init__(self, store: RemoteStore) -> None:
        self._store, self._session = store, store.session  # whose files are removed with it
        stem = self._session.stem()
        self._path, self.clock = Path(f"{stem}{SCHEDULE}"), map_number(Path(f"{stem}{CLOCK}"))
        self._uses: dict[RemoteFile, list[list[int]]] = {}  # the first and the last samples of its stretches, in order
        weakref.finalize(self, remove_files, os.getpid(), stem)

    def add(self, variant: str, samples: Array, shards: Array, gap: int) -> None:
        """Add each shard of some samples as a stretch, joined to the shard's last one if that is under `gap` samples before."""
        numbers, first = np.unique(shards, return_index=True)
        last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
        for number, *stretch in np.stack([numbers, samples[first], samples[last]], axis=1).tolist():
            known = self._uses.setdefault(self._store.shards[variant][number], [])
            if known and stretch[0] - known[-1][1] < gap:
                known[-1] = [min(known[-1][0], stretch[0]), max(known[-1][1], stretch[1])]
            else:
                known.append(stretch)

    def check_room(self, at_once: int) -> None:
        """Raise a StoreError if the cache has no room for the shards that are used within so many samples."""
        stretches = [(file.bytes, first, last) for file, known in self._uses.items() for first, last in known]
        changes = [(first - at_once, size) for size, first, _ in stretches] + [(last, -size) for size, _, last in stretches]
        need = max(accumulate(size for _, size in sorted(changes))) + max(file.bytes for file in self._uses)
        if self._store.limit is not None and need > self._store.limit:
            raise StoreError(
                f"cache_size is {self._store.limit}, but the shards that this order reads at once take {need} bytes: give "
                f"cache_size={need} or more, or read fewer batches ahead (num_workers, prefetch_factor)"
            )

    def write(self) -> None:
        """Write the uses that are not over."""
        left = {file: [stretch for stretch in known if stretch[1] >= self.clock[0]] for file, known in self._uses.items()}
        self._uses = {file: known for file, known in left.items() if known}
        write_whole(self._path, json.dumps([*self._uses.items()]).encode())


def locate(
    path: StrPath, cache: StrPath | None = None, cache_size: int | str | None = None, storage: Storage | None = None
) -> StrPath:
    """Return the location of a store: the given path, that of a file:// URL without cache, or a RemoteStore.

    Args:
        cache: the folder for shards. Default: $FASTDATA_CACHE.
        cache_size: the most bytes of shards in it, such as "200GB". Default: $FASTDATA_CACHE_SIZE, or what the disk has.
        storage: options of the client: endpoint, region, anonymous and others.
    """
    if not is_url(path):
        if (cache, cache_size, storage) != (None, None, None) and isinstance(path, str | Path):
            what = "cache, cache_size and storage go with a URL, such as s3://bucket/photos.fds"
            raise ValueError(f"{what}, but {os.fspath(path)} is a path")
        return path
    url = str(path)
    folder = cache if cache is not None else os.environ.get("FASTDATA_CACHE")
    if folder is None and scheme(url) == "file":
        return local_path(url)
    if folder is None:
        raise ValueError(f"{url} is read through a cache: give cache=FOLDER, on a local disk, or set FASTDATA_CACHE")
    size = cache_size if cache_size is not None else os.environ.get("FASTDATA_CACHE_SIZE")
    limit = None if size is None else parse_bytes(size, "cache_size")
    return RemoteStore(url, dict(storage or {}), folder, limit)
