"""OUT in object storage: the store is made in a folder of this machine, its shards are uploaded as they finish, the manifest last.

The folder is the same for every run to a URL, so that a run continues one that was killed. It has everything but uploaded shards.
"""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from fastdata.errors import PrepError
from fastdata.remote.bucket import Bucket
from fastdata.remote.publish import REQUESTS, read_fingerprint
from fastdata.remote.url import Storage, is_url, local_path, scheme
from fastdata.store.files import MANIFEST, PLAN, WORK, is_own
from fastdata.store.manifest import Manifest, parse_manifest
from fastdata.store.store import Store

__all__ = ["Upload", "on_disk", "place_of", "upload_folder"]

CLAIM = f"{WORK}/{PLAN}"  # an object with the fingerprint of the plan that has the URL


def place_of(out: Any) -> Any:
    """Return OUT as it is used: a URL of object storage without a slash at its end, the path of a file:// URL, or as given."""
    if isinstance(out, os.PathLike) and os.fspath(out).partition("/")[0].endswith(":"):
        raise ValueError(f"OUT {out} is a path, in which // became /: give a URL as text")
    if not is_url(out):
        return out
    if scheme(out) == "file":
        return local_path(out)
    if scheme(out) in ("http", "https"):
        raise ValueError(f"OUT {out} can only be read: give a URL such as s3://bucket/photos.fds, gs:// or az://")
    return out.rstrip("/")


def on_disk(out: Any, what: str) -> Any:
    """Return OUT as `place_of` does. Raise a PrepError if it is a URL. what: begins the reason."""
    if is_url(place := place_of(out)):
        raise PrepError(f"OUT is {place}, but {what} on a disk: give a folder, then fastdata publish")
    return place


def upload_folder(url: str) -> Path:
    """Return the folder of this machine in which the store at a URL is made."""
    return Path(tempfile.gettempdir(), f"fastdata-{os.getuid()}-{xxhash.xxh3_64_hexdigest(url.encode())}")


class Upload:
    """A store that is made at a URL, in a folder of this machine. storage: options of the client."""

    def __init__(self, url: str, folder: Path, storage: Storage | None) -> None:
        self.url, self.folder = url, folder
        self._bucket = Bucket(url, storage, create=True)
        self._sizes = dict[str, int]()  # of the objects
        self.finished = False

    def _fingerprint(self, name: str) -> str | None:
        return read_fingerprint(self._bucket, name)

    def begin(self, fingerprint: str) -> None:
        """Claim the URL for a plan, whose store may be `finished` there."""
        self._sizes = dict(self._bucket.list())
        if foreign := next((name for name in self._sizes if not is_own(name)), ""):
            raise PrepError(f"OUT {self.url} is not a store, but holds {foreign}; choose another URL, or remove it yourself")
        claimed = self._bucket.put(CLAIM, json.dumps({"fingerprint": fingerprint}).encode())
        stored = self._fingerprint(MANIFEST)
        if {self._fingerprint(CLAIM), stored} - {None, fingerprint}:
            if claimed:
                self._bucket.delete([CLAIM])
            raise PrepError(
                f"{self.url} was made, or begun, with other options or inputs: give another URL, or delete what is there"
            )
        self.finished = stored is not None

    def size(self, path: Path) -> int:
        """Return the size of a file in the folder, or of its object. Raise a KeyError if there is neither."""
        return path.stat().st_size if path.exists() else self._sizes[path.relative_to(self.folder).as_posix()]

    def send(self, path: Path) -> None:
        """Upload a file of the folder, and remove it there."""
        name = path.relative_to(self.folder).as_posix()
        self._bucket.put(name, path, replace=True)
        self._sizes[name] = path.stat().st_size
        path.unlink()

    def commit(self, manifest: Manifest) -> None:
        """Upload the tables of a store, which lie in the folder, and its manifest. Then it is the store at the URL."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(lambda name: self._bucket.put(name, self.folder / name, replace=True), manifest.files))
        if not self._bucket.put(MANIFEST, manifest.to_json()) and self._fingerprint(MANIFEST) != manifest.fingerprint:
            raise PrepError(f"another store has been made at {self.url} meanwhile; give each its own OUT")
        self.finished = True

    def release(self) -> None:
        """Give up the claim on the URL; of an unfinished store, remove everything."""
        names = [name for name, _ in self._bucket.list()]
        self._bucket.delete([name for name in names if is_own(name) and (name == CLAIM or MANIFEST not in names)])

    def open(self) -> Store:
        """Open the finished store at the URL, without its shards."""
        if (self.folder / MANIFEST).exists():
            return Store(self.folder, kind=None, whole=False)
        raw = self._bucket.read_twice(MANIFEST)
        manifest = parse_manifest(raw, f"{self.url}/{MANIFEST}")
        folder = self.folder / manifest.fingerprint
        with ThreadPoolExecutor(REQUESTS) as pool:
            for name, total in manifest.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("wb") as file:
                    self._bucket.fetch(name, total.bytes, total.xxh3_128, file.fileno(), pool)
        (folder / MANIFEST).write_bytes(raw)
        return Store(folder, kind=None, whole=False)
