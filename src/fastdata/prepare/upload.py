"""OUT in object storage: a store is made in a folder of this machine, and its shards are uploaded as they finish.

What is durable lies in the bucket: the plan, and the files and the table of each finished shard; tables and the manifest come last.
The folder is named by the URL, so that the same command goes on where it was killed. It looks like that of a store which is made on
a disk, so that the same code works in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError, FormatError, PrepError, StoreError
from fastdata.prepare.worker import Made, publish_shard, shard_place, shard_table, strikes_path
from fastdata.remote.bucket import Bucket
from fastdata.remote.publish import REQUESTS, fingerprint_of, read_object
from fastdata.remote.url import Storage, is_url, local_path, scheme
from fastdata.store.files import COLUMNS, MANIFEST, PLAN, WORK, FileSum, clear, file_sum, is_own, write_atomic
from fastdata.store.format import Manifest, read_manifest
from fastdata.store.store import Store

__all__ = ["Upload", "check_storage", "opened", "place_of", "refuse_overwrite"]

OURS = f"{WORK}/{PLAN}", MANIFEST
OVERRULED = (
    "the plan at {} is not that of this fastdata-prep any more: another one has begun or made a store there. "
    "Give each its own OUT, or run one after the other"
)


def place_of(out: Any) -> Any:
    """Return OUT as it is used: a URL of object storage without a slash at its end; the path that a file:// URL names; or as given.

    Raises:
        ValueError: it is a URL to which nothing can be written.
    """
    if isinstance(out, os.PathLike) and os.fspath(out).partition("/")[0].endswith(":"):
        raise ValueError(f"OUT {out} is a path, in which // became /: give a URL as text")
    if not is_url(out):
        return out
    if scheme(out) == "file":
        return local_path(out)
    if scheme(out) in ("http", "https"):
        raise ValueError(f"OUT {out} can only be read: give a URL such as s3://bucket/photos.fds, gs:// or az://")
    return out.rstrip("/")


def check_storage(storage: Storage | None, *places: Any) -> None:
    """Raise a ValueError if there are options of a client, but none of the places is a URL."""
    if storage and not any(is_url(str(place)) for place in places):
        raise ValueError("--storage is about a URL, such as s3://bucket/photos, but SOURCE and OUT are folders: leave it out")


def refuse_overwrite(out: Any, overwrite: bool) -> None:
    """Raise a ValueError if a store at a URL is to be replaced."""
    if overwrite and is_url(place_of(out)):
        raise ValueError(f"--overwrite replaces a store on a disk, but OUT {out} is in object storage: give a new name")


@contextmanager
def opened(out: Any, storage: Storage | None) -> Iterator[Upload | None]:
    """Yield OUT as an Upload; None: it is a folder. Errors name the URL in place of its folder.

    Args:
        out: what `place_of` returns.
        storage: options of the client.
    """
    if not is_url(out):
        yield None
        return
    if sys.platform != "linux":
        raise StoreError(f"OUT {out} is in object storage, which needs Linux: prepare to a folder")
    with Upload(out, storage) as upload:
        yield upload


def _lock_folder(parent: Path, name: str) -> tuple[Path, int]:
    """Make a folder that no other process uses, or take that of one that was killed. Return it, and a descriptor that locks it."""
    number = 0
    while True:
        folder = parent / f"out-{name}-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{parent} cannot be used: {error.strerror}; TMPDIR names a folder on another disk") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return folder, descriptor
        except BlockingIOError:
            number += 1
        except FileNotFoundError:  # its process has just removed it
            pass
        os.close(descriptor)


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a process that was killed while another one had the first name."""
    with suppress(OSError):  # it is in use, or gone
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


class Upload:
    """A store that is being made at a URL. A context manager.

    Attributes:
        url: of the store.
        storage: options of the client.
        folder: on this machine: copies of the plan and of tables, and shards until they are uploaded. It is removed at the end,
            unless there are shards in it.
    """

    def __init__(self, url: str, storage: Storage | None) -> None:
        self.url, self.storage = url, dict(storage or {})
        self._bucket = Bucket(url, storage, create=True)
        parent = Path(tempfile.gettempdir(), f"fastdata-{os.getuid()}")
        name = json.dumps([url, sorted(self.storage.items(), key=str), os.environ.get("AWS_ENDPOINT_URL")], default=str)
        self.folder, self._lock = _lock_folder(parent, hashlib.blake2b(name.encode(), digest_size=8).hexdigest())
        self._pool = ThreadPoolExecutor(REQUESTS, "objects")
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()
        if isinstance(error, FastDataError) and str(self.folder) in str(error):
            error.args = (self._named(error), *error.args[1:])

    def close(self) -> None:
        """End the threads, and remove the folder unless shards wait in it."""
        self._pool.shutdown(cancel_futures=True)
        if not any(self.folder.glob("*/*.mdb")):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        for folder in self.folder.parent.glob(f"{self.folder.name.rpartition('-')[0]}-*"):
            if folder != self.folder:
                _remove_unused(folder)
        with suppress(OSError):  # it is in use
            self.folder.parent.rmdir()

    def _named(self, error: FastDataError) -> str:
        """Return the message of an error as the user knows the places."""
        if isinstance(error, PrepError | FormatError):
            return str(error).replace(f"{self.folder}/", f"{self.url}/").replace(str(self.folder), self.url)
        return f"{error}\n{self.folder} is where shards wait until they are sent to {self.url}; TMPDIR names another disk"

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _read(self, name: str) -> bytes | None:
        return read_object(self._bucket, name, self._pool)

    def _all(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> None:
        """Call a function with each of the arguments, many at a time."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(function, arguments))

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, durable=False)

    # From the bucket

    def refresh(self) -> None:
        """Make the manifest and the plan in the folder those of the bucket, and remove what is of another plan."""
        plan = self.folder / WORK / PLAN
        old, new = (fingerprint_of(data) for data in (plan.read_bytes() if plan.exists() else None, self._read(OURS[0])))
        if old != new:
            clear(self.folder)
            (self.folder / WORK).mkdir(parents=True, exist_ok=True)
        self.pull([plan], again=True)
        with suppress(OSError, ValueError, KeyError):  # there is none, or it is damaged, which whoever reads it says
            self.pull([self.folder / name for name in json.loads(plan.read_bytes())["files"]])
        self.find_manifest()

    def find_manifest(self) -> bool:
        """Copy the manifest of the store into the folder; return whether it is finished."""
        self.pull([self.folder / MANIFEST], again=True)
        return (self.folder / MANIFEST).exists()

    def pull(self, paths: Sequence[Path], *, again: bool = False) -> None:
        """Copy objects into the folder, unless they are there. again: also those that are; what is not in the bucket is removed."""

        def pull(path: Path) -> None:
            if (data := self._read(self._name(path))) is not None:
                self._write(path, data)
            elif again:
                path.unlink(missing_ok=True)

        self._all(pull, [path for path in paths if again or not path.exists()])

    def store(self) -> Store:
        """Copy the tables of a finished store into the folder, and open it."""
        self.fetch(read_manifest(self.folder).files)
        return Store(self.folder, kind=None, whole=False)

    def fetch(self, files: dict[str, FileSum]) -> None:
        """Copy objects of known checksums into the folder."""

        def fetch(name: str) -> None:
            path, total = self.folder / name, files[name]
            if path.exists() and file_sum(path) == total:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.tmp")
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                digest = self._bucket.download(name, total.bytes, descriptor, self._pool)
                for _ in range(REQUESTS):
                    if digest == total.xxh3_128:
                        break
                    digest = self._bucket.mend(name, total.bytes, descriptor, self._pool)
                else:
                    raise FormatError(f"{self.url}/{name} is damaged: its checksum differs")
            finally:
                os.close(descriptor)
            temporary.replace(path)

        self._all(fetch, files)

    def look(self, shards: Sequence[int]) -> Callable[[Path], int]:
        """Copy the tables of shards that are finished in the bucket into the folder, and what is known of inputs that cost workers.

        Returns:
            What returns the size of an object, by its place in the folder, and raises a KeyError if there is none.
        """
        sizes = dict(self._bucket.list())
        tables = [path for k in shards for path in (shard_table(self.folder, k), strikes_path(self.folder, k))]
        self.pull([path for path in tables if self._name(path) in sizes], again=True)
        return lambda path: sizes[self._name(path)]

    # To the bucket

    def push(self, path: Path) -> None:
        """Copy a small file of the folder into the bucket, in place of one that is there."""
        self._bucket.put(self._name(path), path.read_bytes(), replace=True)

    def send_plan(self, files: Iterable[str], fingerprint: str) -> None:
        """Upload the plan that lies in the folder, and remove what others have left in the bucket if there is none yet.

        Raises:
            PrepError: the URL holds what is not ours; or another plan has just been written there.
        """
        names = [name for name, _ in self._bucket.list()]
        if any(name in names for name in OURS):
            self.check_plan(fingerprint)
        else:
            if foreign := next((name for name in names if not is_own(name)), ""):
                raise PrepError(f"OUT {self.url} is not a store, but holds {foreign}; choose another URL, or remove it yourself")
            self._bucket.delete([name for name in names if not name.startswith(f"{WORK}/sources-")])
        plan = self.folder / WORK / PLAN
        self._all(self.push, [*(self.folder / name for name in files), *plan.parent.glob("sources-*.json")])
        if not self._bucket.put(OURS[0], plan.read_bytes()):
            self.check_plan(fingerprint)

    def check_plan(self, fingerprint: str) -> None:
        """Raise a PrepError if the plan at the URL, or the store if it is finished, has another fingerprint."""
        if fingerprint_of(self._read(OURS[0]) or self._read(MANIFEST)) != fingerprint:
            raise PrepError(OVERRULED.format(self.url))

    def publish(self, made: Made) -> None:
        """Put the files of a shard in their places in the folder, and upload them."""
        for name in made.files:
            shard_place(self.folder, name, made.shard).parent.mkdir(exist_ok=True)
        publish_shard(self.folder, made)
        self.upload(made.shard)

    def upload(self, shard: int) -> None:
        """Upload the files of a finished shard, then its table, which marks it as complete, unless another machine has made it.

        Files of columns stay in the folder, for `finish`; others are removed.

        Raises:
            PrepError: another plan has taken the place of this one.
        """
        table = shard_table(self.folder, shard)
        body = json.loads(table.read_bytes())
        there = self._read(self._name(table))
        if there is None or fingerprint_of(there) != body["fingerprint"]:
            self.check_plan(body["fingerprint"])
            for name in body["files"]:
                path = shard_place(self.folder, name, shard)
                if not self._bucket.put(self._name(path), path):  # there is one, of a try that was lost, or of another plan
                    self.check_plan(body["fingerprint"])
                    self._bucket.put(self._name(path), path, replace=True)
            self.push(table)
        else:
            self._write(table, there)
            if json.loads(there)["files"] != body["files"]:
                shard_place(self.folder, COLUMNS, shard).unlink(missing_ok=True)
        for name in body["files"]:
            if name != COLUMNS:
                shard_place(self.folder, name, shard).unlink()

    def commit(self, manifest: Manifest) -> None:
        """Upload the tables of a store, which lie in the folder, and its manifest. Then it is the store at the URL.

        Raises:
            PrepError: there is another plan, or store, now.
        """
        self.check_plan(manifest.fingerprint)
        self._all(lambda name: self._bucket.put(name, self.folder / name, replace=True), manifest.files)
        if not self._bucket.put(MANIFEST, manifest.to_json()):
            self.check_plan(manifest.fingerprint)

    def clear(self) -> None:
        """Remove all objects of the store that is being made, the manifest first, so that an interruption leaves none."""
        names = [name for name, _ in self._bucket.list() if is_own(name)]
        self._bucket.delete([name for name in names if name in OURS])
        self._bucket.delete([name for name in names if name not in OURS])

    def clear_work(self) -> None:
        """Remove what only an unfinished store needs; the plan last."""
        names = [name for name, _ in self._bucket.list(WORK) if is_own(name)]
        self._bucket.delete([name for name in names if name not in OURS])
        self._bucket.delete([name for name in names if name in OURS])
