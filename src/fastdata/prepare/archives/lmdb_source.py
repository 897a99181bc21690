"""LMDB: Caffe's Datum messages, or one image file a key."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import lmdb

from fastdata.errors import CodecError, PrepError
from fastdata.prepare.archives.archive import Folder, Item, Kind, held, in_order, unreadable
from fastdata.prepare.archives.datum import read_datum
from fastdata.prepare.inputs import SourceList

__all__ = ["KIND"]

OTHERS = re.compile(rb"label-\d+|num-samples|length|__\w+__")  # of the usual layouts: what is no image


def _takes(path: Path) -> bool:
    return (path / "data.mdb").is_file() or (path.is_file() and path.suffix.lower() in (".mdb", ".lmdb"))


def _inside(folder: Folder) -> list[Path]:
    return []  # `_takes` knows the folders


class _Environment:
    """A file of LMDB, open for reading."""

    def __init__(self, path: Path) -> None:
        file = path / "data.mdb" if path.is_dir() else path
        with file.open("rb"):  # LMDB's own messages do not say why it cannot
            pass
        self._env = lmdb.open(os.fsencode(file), subdir=False, readonly=True, create=False, lock=False, readahead=False)
        try:
            needs = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
            if file.stat().st_size < needs:  # it would kill the process that looks there
                raise lmdb.Error(f"{file.stat().st_size} bytes of {needs} are there: it was cut short")
            self.txn: Any = self._env.begin(buffers=True)
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        self.txn.abort()
        self._env.close()


def _inputs(root: Path, files: list[Path], key: str) -> SourceList:
    if len(files) > 1:
        raise PrepError(f"SOURCE is {len(files)} LMDB files, {files[0]} and others; prepare each by itself")
    path = files[0]
    _refuse_stores(path)
    try:
        environment = _Environment(path)
    except (lmdb.Error, OSError) as error:
        raise unreadable(path, error) from error
    try:
        return _listed(root, path, environment.txn)
    except lmdb.Error as error:
        raise unreadable(path, error) from error
    finally:
        environment.close()


def _refuse_stores(path: Path) -> None:
    for folder in (path, path.parent, path.parent.parent):
        manifest = folder / "manifest.json"
        if manifest.is_file() and b'"format": "fastdata"' in manifest.read_bytes():
            raise PrepError(
                f"{path} is of the store {folder}, which is prepared; `fastdata export` makes files of it, to prepare anew"
            )


def _listed(root: Path, path: Path, txn: Any) -> SourceList:
    items, labels, skipped = list[Item](), list[int | None](), Counter[str]()
    file = "" if path == root else str(path.relative_to(root))
    for key, value in txn.cursor():
        if OTHERS.fullmatch(key):
            skipped[re.sub(r"\d+", "*", bytes(key).decode())] += 1
            continue
        datum, name = read_datum(value), bytes(key).decode("utf-8", "surrogateescape")
        items.append((name, len(value), "", ("lmdb", file, name)))
        labels.append(None if datum is None else datum.label)
    return in_order(root, items, labels, skipped=skipped)


def _read(path: Path, name: str) -> bytes:
    try:
        value = held(path, _Environment).txn.get(name.encode("utf-8", "surrogateescape"))
    except lmdb.Error as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    if value is None:
        raise CodecError("the archive has no such key now", "missing")
    datum = read_datum(value)
    return bytes(value) if datum is None else datum.file()


KIND = Kind("lmdb", _takes, _inside, _inputs, _read)
