"""Versions of a store that has grown: folders `version-2`, `version-3`, ... inside of it, each with a manifest and tables."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from fastdata.errors import StoreError
from fastdata.store.files import MANIFEST
from fastdata.store.format import Manifest, read_manifest

__all__ = ["current", "read_current", "version_folder", "versions"]


def version_folder(root: Path, number: int) -> Path:
    """Return the folder of a version."""
    return root / f"version-{number}"


def versions(root: Path) -> list[int]:
    """Return the numbers of the versions of a store, in order; empty if it has never grown."""
    found = (re.fullmatch(r"version-([1-9][0-9]*)", path.parent.name) for path in root.glob(f"version-*/{MANIFEST}"))
    return sorted(int(name[1]) for name in found if name)


def current(path: Path, version: str | None = None) -> Path:
    """Return the folder with the manifest of a store: its newest version, or the one that is asked for.

    Args:
        path: a store, or the folder of one of its versions, which stands for that version.
        version: the xxh3-128 of the manifest of the version that was opened before, or its fingerprint; None: take the newest.

    Raises:
        StoreError: there is no such version.
    """
    known = [version_folder(path, number) for number in reversed(versions(path))]
    if version is None:
        return known[0] if known else path
    for folder in (*known, path):
        manifest = read_manifest(folder)
        if version in (manifest.fingerprint, manifest.xxh3_128):
            return folder
        if not manifest.shards_in:  # it has taken the place of what else is there
            break
    raise StoreError(f"{path} was replaced while this dataset was in use; make the dataset again")


def read_current(path: Path, version: str | None = None) -> tuple[Path, Manifest]:
    """Return the folder of `current`, and its manifest. If another process puts a store in its place meanwhile, it is either.

    Raises:
        StoreError, FormatError: there is no store, or not this version, or its manifest is damaged.
    """
    for _ in range(2):
        with suppress(StoreError):  # the files of the other store may have been removed since they were listed
            folder = current(path, version)
            return folder, read_manifest(folder)
    folder = current(path, version)
    return folder, read_manifest(folder)
