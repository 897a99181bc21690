"""Grow a store by other inputs, and merge stores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError
from fastdata.options import as_option, options_of
from fastdata.prepare.folder import claimed, writing
from fastdata.prepare.job import prep
from fastdata.prepare.join import check_alike, join, link_shards
from fastdata.prepare.remote_out import place_of
from fastdata.prepare.replacing import settle
from fastdata.prepare.summary import Summary
from fastdata.remote.url import is_url
from fastdata.store.files import MANIFEST, clear, file_sum, is_store, sync, write_atomic
from fastdata.store.format import Manifest
from fastdata.store.store import Store
from fastdata.store.versions import current, version_folder, versions

__all__ = ["append", "as_before", "merge"]

StrPath = str | os.PathLike[str]


def append(source: Any, store: StrPath, **options: Any) -> Summary:
    """Prepare more inputs as those of a store were prepared, and add them to it as its next version.

    Who has the store open keeps the version that it opened; who opens it later gets the new one. The samples of before keep their
    numbers and labels; classes that the store lacks are added after its own. After an interruption, the same call continues; until
    it has finished, the store is as it was. Inputs that the last call has added already are not added again.

    Args:
        source: the inputs, as for `prep`.
        store: the store to grow.
        options: as for `prep`. Those that decide how samples are stored are taken from the store; others, such as labels, masks and
            fields, are given for each source.

    Returns:
        What was prepared of `source`; `out` is the new version.

    Raises:
        PrepError: the inputs, or their options, do not fit the store.
        StoreError: there is no such store, or it cannot be written.
    """
    root = Path(_on_disk(store, "append")).absolute()
    _check_root(root)
    out = root.with_name(f"{root.name}.append")
    if options.pop("out", None) is not None:
        raise ValueError("out goes with prep: append adds to the store")
    summary = prep(source, out, **as_before(root, options))
    added = Store(out, kind=None)
    with writing(root), claimed(root):
        settle(root)
        notes = (*summary.notes, *_add(root, added))
    shutil.rmtree(out)
    return replace(summary, out=current(root), notes=notes)


def as_before(store: StrPath, options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `prep` that prepare other inputs as those of a store were prepared. options: what the user gives."""
    opened = Store(_on_disk(store, "append"), kind=None)
    given = {name: value for name, value in options.items() if value is not None}
    known = options_of(opened.kind.options)
    same = {name: value for name, value in opened.kind.again(opened).items() if name in known}
    for name, value in given.items():
        was = same.get(name, value) if name != "kind" else opened.kind.name
        if _plain(value) != _plain(was):
            raise PrepError(
                f"{as_option(name)} is {_plain(value)}, but {opened.path} was prepared with {_plain(was)}: leave it out"
            )
    return {"kind": opened.kind.name, **same, **given}


def _on_disk(store: StrPath, argument: str) -> StrPath:
    """Return the path of a store that is changed or made in place.

    Raises:
        PrepError: it is in object storage.
    """
    place: StrPath = place_of(store)
    if is_url(place):
        raise PrepError(
            f"{as_option(argument)} is {place}, but only stores on a disk can grow or be merged: do it there, then fastdata publish"
        )
    return place


def _plain(value: Any) -> Any:
    """Return the value of an option as it is compared and shown: a list of one is that one."""
    if not isinstance(value, list | tuple):
        return value
    return value[0] if len(value) == 1 else list(value)


def _check_root(root: Path) -> None:
    if is_store(root) and Store(root, kind=None).manifest.shards_in not in ("", ".."):
        raise PrepError(f"{root} is a subset of another store: append to that one")
    if is_store(root.parent) and current(root.parent) != root.parent and root.name.startswith("version-"):
        raise PrepError(f"{root} is a version of {root.parent}: append to the store itself")


def _add(root: Path, added: Store) -> tuple[str, ...]:
    """Add a store to another as its next version. Return notes."""
    last = Store(root, kind=None)
    digest = file_sum(added.path / MANIFEST).xxh3_128
    if last.manifest.added == digest:  # the last call was killed before it removed what it had added, or this one repeats it
        return (f"{root} has these samples already: nothing was added",)
    for left in root.glob("version-*.tmp"):
        shutil.rmtree(left)
    number = (versions(root) or [1])[-1] + 1
    try:
        check_alike([last, added])
        manifest = _write(root, number, [last, added], digest)
    except PrepError:
        shutil.rmtree(added.path)  # it fits no other call
        raise
    link_shards([added], root, first=len(last.manifest.variants[0].shards))
    if number == 2:  # the first version too gets a folder, by which it can be opened later
        _write(root, 1, [last], "")
        _commit(root, 1)
    _commit(root, number)
    notes: tuple[str, ...] = (f"{version_folder(root, number)}: {len(last)} samples of before and {len(added)} new ones",)
    if new := manifest.labels.names[len(last.manifest.labels.names) :]:
        notes += (f"new classes, from number {len(last.manifest.labels.names)} on: {', '.join(new)}",)
    return notes


def _temporary(root: Path, number: int) -> Path:
    folder = version_folder(root, number)
    return folder.with_name(f"{folder.name}.{os.getpid()}.tmp")


def _write(root: Path, number: int, stores: Sequence[Store], added: str) -> Manifest:
    """Write a version to a temporary folder."""
    temporary = _temporary(root, number)
    temporary.mkdir()
    try:
        manifest = replace(join(stores, temporary, shards_in=".."), added=added)
        write_atomic(temporary / MANIFEST, manifest.to_json())
    except BaseException:
        shutil.rmtree(temporary)
        raise
    return manifest


def _commit(root: Path, number: int) -> None:
    """Make a version that is complete one of the store's."""
    sync(_temporary(root, number))
    _temporary(root, number).rename(version_folder(root, number))
    sync(root)


def merge(stores: Sequence[StrPath], out: StrPath) -> Path:
    """Make one store of several, whose samples follow each other.

    The stores must have been prepared with the same options. Classes are joined by their names: those of the first store keep
    their numbers. Shards are linked where the file system can, so that they take no space twice, and copied otherwise.

    Args:
        stores: two or more stores of one kind.
        out: the store to make.

    Returns:
        The path of the store.

    Raises:
        PrepError: the stores do not fit together, or `out` exists.
        StoreError: a store cannot be read.
    """
    opened = [Store(path, kind=None) for path in stores]
    if len(opened) < 2:
        raise ValueError(f"{len(opened)} stores were given, but merging takes two or more")
    check_alike(opened)
    root = Path(_on_disk(out, "out")).absolute()
    if inside := next((store.path for store in opened if store.shards in (root, *root.parents)), None):
        raise PrepError(f"OUT {root} is, or lies inside of, {inside}, which is merged: choose another name")
    with writing(root), claimed(root):
        if is_store(root):
            raise PrepError(f"OUT {root} is a store already: choose another name, or remove it")
        clear(root)
        link_shards(opened, root)
        write_atomic(root / MANIFEST, join(opened, root).to_json())
    return root
