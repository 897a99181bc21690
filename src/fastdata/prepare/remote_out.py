"""OUT in object storage: what is durable lies in the bucket, and a folder of this machine has what this process needs of it.

The folder looks like that of a store which is made on a disk, so that the same code works in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.errors import FastDataError, FormatError, PrepError, StoreError
from fastdata.prepare.scratch import temporary_folder
from fastdata.prepare.worker import Made, shard_place, shard_table, strikes_path
from fastdata.remote.agent import REQUESTS, Agent
from fastdata.remote.store import TablesOnly
from fastdata.remote.url import Storage, is_url, local_path, scheme
from fastdata.store.files import COLUMNS, MANIFEST, PLAN, WORK, FileSum, is_own, write_atomic
from fastdata.store.format import Manifest, read_manifest
from fastdata.store.store import Store

__all__ = ["ANOTHER", "RemoteOut", "check_storage", "opened", "place_of", "refuse_overwrite"]

StrPath = str | os.PathLike[str]

ANOTHER = (
    "another fastdata-prep is making a store at {}, with other options or inputs, or was killed while it planned it: give another "
    "OUT, or, if it is not running any more, delete what is there"
)
OVERRULED = (
    "the plan at {} is not that of this fastdata-prep any more: another one has begun or made a store there. "
    "Give each its own OUT, or run one after the other"
)

FEW = 16  # shards, whose tables are asked for one by one; of more, all objects are listed
FIRST = 1000  # objects to look at before a whole folder is taken for one of ours
LOCK = "lock"  # an object in `work` that has the fingerprint of the plan whose URL it is
OURS = f"{WORK}/{PLAN}", MANIFEST


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
def opened(out: Any, storage: Storage | None, scratch: StrPath | None) -> Iterator[RemoteOut | None]:
    """Yield OUT as a RemoteOut; None: it is a folder. Errors name the URL in place of its folder.

    Args:
        out: what `place_of` returns.
        storage: options of the client.
        scratch: where to make the folder; None: in the system's folder for temporary files.
    """
    if not is_url(out):
        yield None
        return
    if sys.platform != "linux":
        raise StoreError(f"OUT {out} is in object storage, which needs Linux: prepare to a folder")
    with RemoteOut(out, storage, scratch) as remote:
        yield remote


class RemoteOut:
    """A store that is being made at a URL. A context manager.

    Objects are written only if there are none of their names. Another process may make the same shard at the same time: whose table
    comes first has made it.

    Attributes:
        url: of the store.
        storage: options of the client.
        folder: on this machine, and removed at the end: copies of the plan and of tables, and shards until they are sent.
    """

    def __init__(self, url: str, storage: Storage | None, scratch: StrPath | None = None) -> None:
        self.url = url
        self.storage = dict(storage or {})
        self._closing = ExitStack()
        with ExitStack() as stack:
            self.folder = stack.enter_context(temporary_folder(scratch))
            self._agent = stack.enter_context(Agent(url, storage))
            self._pool = stack.enter_context(ThreadPoolExecutor(REQUESTS, "objects"))
            (self.folder / WORK).mkdir(parents=True)
            self.refresh()
            self._closing = stack.pop_all()

    def __enter__(self) -> RemoteOut:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()
        if isinstance(error, FastDataError) and str(self.folder) in str(error):
            error.args = (self._named(error), *error.args[1:])

    def _named(self, error: FastDataError) -> str:
        """Return the message of an error as the user knows the places."""
        if isinstance(error, PrepError | FormatError):
            return str(error).replace(f"{self.folder}/", f"{self.url}/").replace(str(self.folder), self.url)
        return f"{error}\n{self.folder} is where shards wait until they are sent to {self.url}; --scratch chooses another disk"

    def close(self) -> None:
        """End the process that talks to the server, and remove the folder."""
        self._closing.close()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _all(self, function: Callable[..., Any], arguments: Any) -> list[Any]:
        """Call a function with each of the arguments, many at a time."""
        return list(self._pool.map(function, arguments))

    def refresh(self) -> None:
        """Copy the manifest and the plan of the store into the folder, if there are any, and what an equal plan would reuse."""
        self.find_manifest()
        plan = self.folder / WORK / PLAN
        plan.unlink(missing_ok=True)
        self.pull([plan])
        try:
            files = json.loads(plan.read_bytes())["files"]
        except (OSError, ValueError, KeyError):
            files = {}  # there is none, or it is damaged, which whoever reads it says
        for name, digest in files.items():
            if (data := self._agent.read(name, digest)) is not None:
                self._write(name, data)

    def find_manifest(self) -> bool:
        """Copy the manifest of the store into the folder; return whether it is finished."""
        data = self._agent.read(MANIFEST)
        if data is None:
            (self.folder / MANIFEST).unlink(missing_ok=True)
            return False
        self._write(MANIFEST, data)
        with suppress(StoreError):  # it is damaged, which whoever reads it says
            manifest = read_manifest(self.folder)
            self.fetch({name: manifest.files[name] for name in kinds.find(manifest.kind).extra_files if name in manifest.files})
        return True

    def fetch(self, files: Mapping[str, FileSum]) -> None:
        """Copy objects of known checksums into the folder, unless they are there."""
        for parent in {(self.folder / name).parent for name in files}:
            parent.mkdir(exist_ok=True)
        missing = [name for name in files if not (self.folder / name).exists()]
        self._all(lambda name: self._agent.fetch(name, files[name], self.folder / name), missing)

    def store(self) -> Store:
        """Copy all of a finished store but its shards into the folder, and open it."""
        self.fetch(read_manifest(self.folder).files)
        return TablesOnly(self.folder, kind=None)

    def _write(self, name: str, data: bytes) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        write_atomic(self.folder / name, data, durable=False)

    def pull(self, paths: Sequence[Path]) -> None:
        """Copy what `push` wrote into the folder, unless it is there. What is not in the bucket is left out."""
        self._all(lambda path: self._agent.take(self._name(path), path), [path for path in paths if not path.exists()])

    def push(self, path: Path) -> None:
        """Copy a small file of the folder into the bucket, in place of one that is there."""
        self._agent.put_sealed(self._name(path), path.read_bytes(), replace=True)

    def look(self, shards: Sequence[int]) -> Callable[[Path], int | None]:
        """Copy the tables of finished shards into the folder, and what is known of inputs that have cost workers.

        Returns:
            What returns the size of an object, by its place in the folder; None: there is none.
        """
        wanted = [path(self.folder, k) for k in shards for path in (shard_table, strikes_path)]
        if len(shards) <= FEW:
            self.pull(wanted)
            return lambda path: self._agent.size(self._name(path))
        sizes = self._agent.list()
        self.pull([path for path in wanted if self._name(path) in sizes])
        return lambda path: sizes.get(self._name(path))

    def send_plan(self, files: Mapping[str, bytes], *, first: bool) -> None:
        """Send the plan that lies in the folder. first: there is none in the bucket, and what is left there of others is removed.

        Raises:
            PrepError: the URL holds what is not ours; or another plan has just been written there.
        """
        if first:
            found = self._listed()
            if not any(name in found for name in OURS):  # else another process with the same plan was faster
                self._agent.delete([name for name in found if name != f"{WORK}/{LOCK}"])
        for name, data in files.items():
            if not self._agent.put(name, data):
                raise PrepError(f"{self.url}/{name} has other contents than this plan: give another OUT")
        plan = self.folder / WORK / PLAN
        self._all(self.push, sorted(plan.parent.glob("sources-*.json")))
        if not self._agent.put_sealed(self._name(plan), plan.read_bytes(), replace=not first):
            raise PrepError(ANOTHER.format(self.url))

    def claim(self, fingerprint: str) -> bool:
        """Claim the URL for a plan, until the store is finished. Then look at what is there anew.

        Returns:
            Whether it is this plan's; False: another one's, whose process may be at work, or was killed.

        Raises:
            PrepError: the URL holds what is not ours.
        """
        self._refuse_foreign(self._agent.list(most=FIRST))
        claimed = self._agent.put_sealed(f"{WORK}/{LOCK}", fingerprint.encode())
        self.refresh()
        return claimed

    def give_up(self) -> None:
        """Take back a claim on a URL that turned out to have another plan, or store."""
        self._agent.delete([f"{WORK}/{LOCK}"])

    def clear(self) -> None:
        """Remove all objects of the store that is being made, the manifest first, so that an interruption leaves none.

        Raises:
            PrepError: there are other objects, but neither a store nor a plan.
        """
        found = self._listed()
        for name in reversed(OURS):
            self._agent.delete([name] if name in found else [])
        self._agent.delete([name for name in found if name not in OURS])

    def _listed(self) -> list[str]:
        """Return the objects that prep writes."""
        found = self._agent.list(most=FIRST)
        self._refuse_foreign(found)
        if len(found) == FIRST:
            found = self._agent.list()
        return list(filter(is_own, found))

    def _refuse_foreign(self, found: Mapping[str, int]) -> None:
        if not any(name in found for name in OURS) and (foreign := next((name for name in found if not is_own(name)), "")):
            raise PrepError(f"OUT {self.url} is not a store, but holds {foreign}; choose another URL, or remove it yourself")

    def clear_work(self) -> None:
        """Remove what only an unfinished store needs; the plan last."""
        found = [name for name in self._agent.list(WORK) if is_own(name)]
        self._agent.delete([name for name in found if name not in OURS])
        self._agent.delete([name for name in found if name in OURS])

    def publish(self, made: Made) -> None:
        """Send the files of a shard, then its table, which marks it as complete. Files of columns stay in the folder, for `finish`.

        Raises:
            PrepError: another plan has taken the place of this one.
            StoreError: they cannot be sent.
        """
        if self._send_files(made):
            self._send_table(made)
        for name, (path, _) in made.files.items():
            if name == COLUMNS:
                path.replace(shard_place(self.folder, name, made.shard))
            else:
                path.unlink()

    def _send_files(self, made: Made) -> bool:
        """Send the files of a shard; return False if another process has finished it, with other bytes."""
        for name, (path, total) in made.files.items():
            place = self._name(shard_place(self.folder, name, made.shard))
            if self._agent.put_file(place, path, total):
                continue
            if self._is_finished(made):
                return False
            self._agent.put_file(place, path, total, replace=True)  # of a lost try with another outcome, or of a plan that is gone
        return True

    def _send_table(self, made: Made) -> None:
        """Send the table of a shard whose files were sent. Another process may have sent its own meanwhile, of the same bytes."""
        table = shard_table(self.folder, made.shard)
        name, new = self._name(table), self._agent.put_sealed(self._name(table), made.table)
        if new or not self._is_finished(made):
            self._write(name, made.table)
            if not new:
                self.push(table)
        elif json.loads(table.read_bytes())["files"] != json.loads(made.table)["files"]:
            table.unlink()
            self._agent.delete([name])
            raise StoreError(
                f"shard {made.shard} of {self.url} was made twice at the same time, with different bytes; run the same command "
                "again to make it anew"
            )

    def _is_finished(self, made: Made) -> bool:
        """Copy the table of a shard into the folder, if there is one, and return whether it is of this plan, which is checked."""
        table, fingerprint = shard_table(self.folder, made.shard), json.loads(made.table)["fingerprint"]
        table.unlink(missing_ok=True)
        self.pull([table])
        if table.exists() and json.loads(table.read_bytes())["fingerprint"] == fingerprint:
            return True
        self.check_plan(fingerprint)
        return False

    def check_plan(self, fingerprint: str) -> None:
        """Raise a PrepError if the plan at the URL, or the store if it is finished, has another fingerprint."""
        data = self._agent.read(f"{WORK}/{PLAN}") or self._agent.read(MANIFEST) or b"{}\n"
        if json.loads(data.rpartition(b"\n")[0]).get("fingerprint") != fingerprint:
            raise PrepError(OVERRULED.format(self.url))

    def commit(self, manifest: Manifest) -> None:
        """Send the tables of a store, which lie in the folder, and its manifest. Then it is the store at the URL.

        Args:
            manifest: as it would be on a disk.

        Raises:
            PrepError: there is another plan, or store, now.
        """
        self.check_plan(manifest.fingerprint)

        def send(name: str) -> None:
            if not self._agent.put_file(name, self.folder / name, manifest.files[name]):
                self._agent.put_file(name, self.folder / name, manifest.files[name], replace=True)  # of a `finish` that was lost

        self._all(send, manifest.files)
        if not self._agent.put(MANIFEST, manifest.to_json()):
            raise PrepError(f"OUT {self.url} has become another store while this one was made; choose another URL")
