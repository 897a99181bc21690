"""The files of a store: their names, their checksums, and atomic writes."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import xxhash
from msgspec import Meta, Struct

from fastdata.errors import FormatError, StoreError, damaged, lacking
from fastdata.types import Array

MANIFEST = "manifest.json"
SAMPLES = "samples.npy"
NAMES = "names.txt"
REJECTS = "rejects.jsonl"
COLUMNS = "columns"
WORK = "work"  # holds the plan and the tables of finished shards while a store is made
LOCK = "lock"  # in that folder
NEXT = "next"  # a store that is to replace the one around it: in the work folder while it is made, then beside it
PLAN = "plan.json"  # in that folder; it exists only if the plan is complete


Count = Annotated[int, Meta(ge=0)]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a manifest. When reading it, msgspec accepts only the keys and types of the class."""


class FileSum(Entry, frozen=True):
    """Size and xxh3-128 (hex) of one file."""

    bytes: Count
    xxh3_128: str


def shard_file(variant: str, shard: int) -> str:
    """Return the path of a shard inside its store."""
    return f"{variant}/shard-{shard:05d}.mdb"


def index_file(variant: str) -> str:
    """Return the path inside its store of the index of a variant's records."""
    return f"{variant}/index.npy"


def sum_of(data: bytes | memoryview) -> FileSum:
    """Compute the size and xxh3-128 of some bytes."""
    return FileSum(len(data), xxhash.xxh3_128_hexdigest(data))


def file_sum(path: Path) -> FileSum:
    """Compute the size and xxh3-128 of a file, reading it in blocks."""
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            size += len(block)
    return FileSum(size, digest.hexdigest())


def check_size(path: Path, size: int) -> None:
    """Raise an error unless there is a file of the size that the manifest says."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy the whole store again, or prepare it again") from None
    if found != size:
        what = f"{path} has {found} bytes, but the manifest says {size}: it was cut short or changed"
        raise FormatError(f"{what}; copy it again, or prepare the store again")


def check_sum(path: Path, total: FileSum) -> None:
    """Compare a file with its size and its checksum."""
    check_size(path, total.bytes)
    try:
        same = file_sum(path) == total
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {lacking(error) or f'{error.strerror}; copy the whole store again'}") from None
    if not same:
        raise FormatError(f"{path} is not what was written: its checksum differs; copy it again, or prepare the store again")


def load_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Array:
    """Return a .npy file, memory-mapped read-only. Raise a FormatError if it has another dtype or shape (None for any length)."""
    try:
        values: Array = np.lib.format.open_memmap(path, mode="r")  # refuses objects, which would run code
    except Exception as error:  # noqa: BLE001  numpy evaluates the header, so damaged bytes may raise anything
        raise damaged(path, error) from None
    fits = len(values.shape) == len(shape) and all(want in (None, side) for want, side in zip(shape, values.shape, strict=True))
    if values.dtype != dtype or not fits:
        found, want = [*values.shape], ["n" if side is None else side for side in shape]
        raise FormatError(f"{path} holds {values.dtype} {found}, but the manifest says {dtype} {want}: prepare the store again")
    return np.asarray(values)  # plain, because a slice of a memmap takes ten times as long


class Stamp:
    """A manifest as it was when a store was opened. xxh3_128: of its bytes."""

    def __init__(self, path: Path, xxh3_128: str) -> None:
        self._path, self._sum = path, xxh3_128
        self._seen: tuple[int, ...] = ()

    def _is_replaced(self) -> bool:
        """Return whether the manifest has other bytes now, or is gone. An unchanged file is not read again."""
        try:
            info = self._path.stat()
            now = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
            replaced = now != self._seen and file_sum(self._path).xxh3_128 != self._sum
        except FileNotFoundError:
            folder = self._path.parent
            if not (folder.parent if folder.name == NEXT else folder).exists():  # the store is gone as a whole
                raise
            return True
        self._seen = () if replaced else now
        return replaced

    def check(self) -> None:
        """Raise a StoreError if the store was replaced, or the file cannot be read."""
        try:
            if not self._is_replaced():
                return
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {lacking(error) or error.strerror}") from None
        raise StoreError(f"{self._path.parent} was replaced while this dataset was in use; open the dataset again")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """If the store was replaced, turn an error of the body into one that says so."""
        try:
            yield
        except (OSError, StoreError):
            with suppress(OSError):
                if self._is_replaced():
                    self.check()
            raise


VARIANT = r"((mask-|image-[A-Za-z0-9_]+-)?(full|[0-9]+)|tokens|(mask-)?array)"
_STORED = (
    r"manifest\.json|samples\.npy|names\.txt|rejects\.jsonl|tokenizer\.json|characters\.json"
    r"|columns/[\w-]+((\.values|\.offsets)?\.npy|\.(tokenizer|characters)\.json)"
    rf"|{VARIANT}/(shard-[0-9]+\.mdb|index\.npy)"
)
_WRITTEN = rf"{WORK}/.+|({NEXT}/)?({_STORED})(\.[\w-]+\.tmp)?"
_FOLDER = rf"{WORK}(/.+)?|({NEXT}/)?({COLUMNS}|{VARIANT})|{NEXT}"


def is_store(folder: Any) -> bool:
    """Return whether a folder, a Path or a UrlPath, has the manifest of a store. Other programs also write files of that name."""
    manifest = folder / MANIFEST
    return manifest.is_file() and b'"format": "fastdata"' in manifest.read_bytes()


def is_own(name: str) -> bool:
    """Return whether a finished store may have a file of this name, which is relative to it."""
    return bool(re.fullmatch(_STORED, name))


def own_files(root: Path) -> list[Path]:
    """Return a folder's files with names that only fastdata-prep gives, the manifest first."""
    paths = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    found = [path for path in paths if re.fullmatch(_WRITTEN, path.relative_to(root).as_posix())]
    return sorted(found, key=lambda path: (path.name != MANIFEST, path))


def clear(root: Path, keep: Container[Path] = ()) -> None:
    """Remove a folder's files whose names only fastdata-prep gives, the manifest first, so that an interruption leaves no store.

    Files to keep, all other files and the lock stay.
    """
    for path in own_files(root):
        if path not in keep and path != root / WORK / LOCK:
            path.unlink(missing_ok=True)
    for folder, _, _ in os.walk(root, topdown=False):
        if re.fullmatch(_FOLDER, Path(folder).relative_to(root).as_posix()):
            with suppress(OSError):  # not empty
                Path(folder).rmdir()


def write_atomic(path: Path, data: bytes | memoryview, *, durable: bool = True) -> FileSum:
    """Write a small file so that it is either complete or absent; if `durable`, also after a power failure."""
    temporary = path.with_name(f"{path.name}.{unique()}.tmp")
    try:
        temporary.write_bytes(data)
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)
    return sum_of(data)


def write_npy(path: Path, array: Array) -> FileSum:
    """Write an array so that its file is either complete or absent; it is not flushed to disk."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return write_atomic(path, buffer.getbuffer(), durable=False)


def write_tables(
    root: Path, samples: Array, names: Iterable[str], rejects: Iterable[dict[str, Any]], indices: dict[str, Array]
) -> dict[str, FileSum]:
    """Write the tables of a store, without flushing them, and return their checksums. indices: of each variant's records."""
    arrays = {SAMPLES: samples, **{index_file(name): rows for name, rows in indices.items()}}
    lines = {NAMES: map(json.dumps, names), REJECTS: (json.dumps(reject, sort_keys=True) for reject in rejects)}
    texts = {name: "".join(f"{line}\n" for line in some).encode() for name, some in lines.items()}
    files = {name: write_npy(root / name, array) for name, array in arrays.items()}
    return files | {name: write_atomic(root / name, text, durable=False) for name, text in texts.items()}


def publish(file: Path, path: Path) -> None:
    """Flush a finished file and rename it: the new name has the whole file or its old contents, also after a power failure."""
    sync(file)
    file.replace(path)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, durably; copy it where that is not possible, as between file systems. Links are followed."""
    temporary = target.with_name(f"{target.name}.{unique()}.tmp")
    source = source.resolve()
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        sync(temporary)
    temporary.replace(target)
    temporary.unlink(missing_ok=True)  # if both names are the same file, `replace` leaves the temporary one


def unique() -> str:
    """Return a part of a name that no other process uses, on this machine or another."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def sync(path: Path) -> None:
    """Flush the bytes of a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():  # CIFS and FUSE cannot flush folders
            raise
    finally:
        os.close(descriptor)
