"""OUT in object storage: what is durable lies in the bucket; a temporary folder has copies, and shards until they are uploaded.

The folder looks like that of a store which is made on a disk, so that the same code works in it. The bucket gets the plan, the
files and then the table of each finished shard, and at the end tables and the manifest.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastdata.errors import FormatError, PrepError
from fastdata.prepare.worker import Made, shard_place, shard_table
from fastdata.remote.bucket import Bucket
from fastdata.remote.publish import REQUESTS, fingerprint_of, read_object
from fastdata.remote.store import fetch
from fastdata.remote.url import Storage, is_url, local_path, scheme
from fastdata.store.files import MANIFEST, PLAN, WORK, FileSum, is_own, write_atomic
from fastdata.store.manifest import Manifest, read_manifest
from fastdata.store.store import Store

__all__ = ["Upload", "opened", "place_of"]

PLAN_NAME = f"{WORK}/{PLAN}"
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


@contextmanager
def opened(out: Any, storage: Storage | None) -> Iterator[Upload | None]:
    """Yield OUT as an Upload; None: it is a folder. Errors name the URL in place of its folder. storage: options of the client."""
    url = place_of(out)
    if not is_url(url):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fastdata-", ignore_cleanup_errors=True) as folder:
        with ThreadPoolExecutor(REQUESTS, "objects") as pool:
            try:
                yield Upload(url, Path(folder), storage, pool)
            except (PrepError, FormatError) as error:
                error.args = (str(error).replace(f"{folder}/", f"{url}/").replace(folder, url), *error.args[1:])
                raise


class Upload:
    """A store that is being made at a URL.

    Args:
        url: of the store.
        folder: of this machine, empty.
        storage: options of the client.
        pool: threads for requests.
    """

    def __init__(self, url: str, folder: Path, storage: Storage | None, pool: ThreadPoolExecutor) -> None:
        self.url, self.folder, self._pool = url, folder, pool
        self._bucket = Bucket(url, storage, create=True)
        plan = folder / WORK / PLAN
        self.pull([plan])
        with suppress(OSError, ValueError, KeyError):  # there is none, or it is damaged, which whoever reads it says
            self.pull([folder / name for name in json.loads(plan.read_bytes())["files"]])
        self.find_manifest()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _read(self, name: str) -> bytes | None:
        return read_object(self._bucket, name, self._pool)

    def _all(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> None:
        """Call a function with each of the arguments, many at a time."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(function, arguments))

    # From the bucket

    def find_manifest(self) -> bool:
        """Copy the manifest of the store into the folder; return whether it is finished."""
        self.pull([self.folder / MANIFEST])
        return (self.folder / MANIFEST).exists()

    def pull(self, paths: Sequence[Path]) -> None:
        """Copy objects that exist into the folder, unless they are there."""

        def pull(path: Path) -> None:
            if (data := self._read(self._name(path))) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, data, durable=False)

        self._all(pull, [path for path in paths if not path.exists()])

    def store(self) -> Store:
        """Copy the tables of a finished store into the folder, and open it."""
        self.fetch(read_manifest(self.folder).files)
        return Store(self.folder, kind=None, whole=False)

    def fetch(self, files: dict[str, FileSum]) -> None:
        """Copy objects of known checksums into the folder, unless they are there."""

        def copy(name: str) -> None:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_name(f"{path.name}.tmp").open("w+b") as file:
                fetch(self._bucket, name, files[name], file.fileno(), self._pool)
            Path(file.name).replace(path)

        self._all(copy, [name for name in files if not (self.folder / name).exists()])

    def look(self, shards: Sequence[int]) -> Callable[[Path], int]:
        """Copy the tables of shards that are finished in the bucket into the folder.

        Returns:
            What returns the size of an object, by its place in the folder, and raises a KeyError if there is none.
        """
        sizes = dict(self._bucket.list())
        self.pull([path for k in shards if self._name(path := shard_table(self.folder, k)) in sizes])
        return lambda path: sizes[self._name(path)]

    # To the bucket

    def send_plan(self, files: Iterable[str], fingerprint: str) -> None:
        """Upload the plan that lies in the folder.

        Raises:
            PrepError: the URL holds what is not ours; or another plan has just been written there.
        """
        names = [name for name, _ in self._bucket.list()]
        if MANIFEST in names or PLAN_NAME in names:
            self.check_plan(fingerprint)
        elif foreign := next((name for name in names if not is_own(name)), ""):
            raise PrepError(f"OUT {self.url} is not a store, but holds {foreign}; choose another URL, or remove it yourself")
        paths = [*(self.folder / name for name in files), *(self.folder / WORK).glob("sources-*.json")]
        self._all(lambda path: self._bucket.put(self._name(path), path, replace=True), paths)
        if not self._bucket.put(PLAN_NAME, self.folder / PLAN_NAME):
            self.check_plan(fingerprint)

    def check_plan(self, fingerprint: str) -> None:
        """Raise a PrepError if the plan at the URL, or the store if it is finished, has another fingerprint."""
        if fingerprint_of(self._read(PLAN_NAME) or self._read(MANIFEST)) != fingerprint:
            raise PrepError(OVERRULED.format(self.url))

    def publish(self, made: Made) -> None:
        """Upload the files of a shard, then its table, which marks it as complete, unless another machine has made it.

        Raises:
            PrepError: another plan has taken the place of this one.
        """
        path, fingerprint = shard_table(self.folder, made.shard), str(fingerprint_of(made.table))
        table = self._read(self._name(path))
        if table is None or fingerprint_of(table) != fingerprint:
            self.check_plan(fingerprint)
            for name, (file, _) in made.files.items():
                self._bucket.put(self._name(shard_place(self.folder, name, made.shard)), file, replace=True)
            table = made.table
            self._bucket.put(self._name(path), table, replace=True)
        write_atomic(path, table, durable=False)
        for file, _ in made.files.values():
            file.unlink()

    def commit(self, manifest: Manifest) -> None:
        """Upload the tables of a store, which lie in the folder, and its manifest. Then it is the store at the URL.

        Raises:
            PrepError: there is another plan, or store, now.
        """
        self.check_plan(manifest.fingerprint)
        self._all(lambda name: self._bucket.put(name, self.folder / name, replace=True), manifest.files)
        if not self._bucket.put(MANIFEST, manifest.to_json()):
            self.check_plan(manifest.fingerprint)

    def clear(self, folder: str) -> None:
        """Remove what only preparing writes, in a folder below the URL or all of it; the plan last."""
        names = [name for name, _ in self._bucket.list(folder) if is_own(name)]
        self._bucket.delete([name for name in names if name != PLAN_NAME])
        self._bucket.delete([PLAN_NAME])
