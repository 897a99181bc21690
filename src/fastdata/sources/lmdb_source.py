"""LMDB databases with one image file per key."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from fastdata.children import uninterrupted
from fastdata.errors import CodecError, PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Item, Kind, Selection, make_list, open_once
from fastdata.sources.inputs import SourceList
from fastdata.sources.packed import Packed
from fastdata.store.files import is_store

__all__ = ["KIND", "walk"]

OTHERS = re.compile(r"label-\d+|num-samples|length|__\w+__")  # keys of the usual layouts that are not images
WALK = "import sys; from fastdata.sources.lmdb_source import walk; walk(sys.argv[1])"


def _takes(path: AnyPath) -> bool:
    return (path / "data.mdb").is_file() or (path.is_file() and path.suffix.lower() in (".mdb", ".lmdb"))


def _file(path: AnyPath) -> AnyPath:
    return path / "data.mdb" if path.is_dir() else path


class _Environment:
    """An LMDB file, open for reading."""

    def __init__(self, file: AnyPath) -> None:
        with file.open("rb"):  # raises a better message than LMDB's if the file cannot be read
            pass
        self._env = lmdb.open(os.fsencode(file), subdir=False, readonly=True, create=False, lock=False, readahead=False)
        try:
            needs = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
            if file.stat().st_size < needs:  # reading a page that is missing would kill the process
                raise lmdb.Error(f"{file.stat().st_size} bytes of {needs} are there: it was cut short")
            self.txn: Any = self._env.begin(buffers=True)
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        self.txn.abort()
        self._env.close()


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    if len(files) > 1:
        raise PrepError(f"SOURCE is {len(files)} LMDB files, {files[0]} and others; prepare each by itself")
    path, items, skipped = files[0], Packed[Item](), Counter[str]()
    _refuse_stores(path)
    file = "" if path == root else str(path.relative_to(root))
    for name, size in _entries(path):
        if OTHERS.fullmatch(name):
            skipped[re.sub(r"\d+", "*", name)] += 1
        else:
            items.append((name, size, "", ("lmdb", file, name)))
    return make_list(root, items, [None] * len(items), skipped=skipped, by="")


def _entries(path: AnyPath) -> Iterator[tuple[str, int]]:
    """Yield the key and size of each entry. `walk` reads them in another process, which LMDB may crash on a damaged page."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", WALK, os.fspath(_file(path).absolute())]
    with uninterrupted():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    with process:
        assert process.stdout is not None
        end = "it ended early"
        for line in process.stdout:
            entry = json.loads(line) if line.endswith(b"\n") else end
            if isinstance(entry, str):
                end = entry
                break
            yield tuple(entry)
        process.stdout.close()
        code = process.wait()
    if code < 0:
        end = f"its structure is damaged ({signal.Signals(-code).name})"
    if end:
        raise PrepError(f"cannot read {path}: {end}")


def walk(path: str) -> None:
    """Print the entries of a database as JSON lines of key and size in bytes, then a string: the error, or ""."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly if nobody reads them
    end = ""
    try:
        environment = _Environment(Path(path))
        earlier = None  # the key of the last entry whose number is a power of two
        for number, (key, value) in enumerate(environment.txn.cursor(), 1):
            if key == earlier:  # several ways lead to its page: on many levels, the walk would not end
                raise lmdb.Error(f"its structure is damaged: key {bytes(key)!r:.60} comes again")
            if not number & (number - 1):
                earlier = bytes(key)
            print(json.dumps([bytes(key).decode("utf-8", "surrogateescape"), len(value)]))  # noqa: T201
    except OSError as error:
        end = error.strerror or str(error)
    except lmdb.Error as error:
        end = str(error)
    print(json.dumps(end))  # noqa: T201


def _refuse_stores(path: AnyPath) -> None:
    for folder in (path, path.parent, path.parent.parent):
        if is_store(folder):
            raise PrepError(f"{path} is part of the store {folder}; to prepare its samples again: fastdata export {folder} DIR")


def _read(path: AnyPath, name: str) -> bytes:
    try:
        value = open_once(_file(path), _Environment).txn.get(name.encode("utf-8", "surrogateescape"))
    except lmdb.Error as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    if value is None:
        raise CodecError("the archive has no such key now", "missing")
    return bytes(value)


KIND = Kind("lmdb", _takes, _inputs, _read)  # `_takes` recognizes folders
