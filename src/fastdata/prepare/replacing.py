"""Put a finished store in the place of another one, in whose work folder it was made.

The rename of its folder, to that of a version, is the moment from which readers get the new store. Then the files of the old one
are removed, the manifest first, and those of the new one linked to where they belong, the manifest last. So the folder ends as if
there had never been another store, and holds a whole one at any moment.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fastdata.errors import StoreError
from fastdata.prepare.join import link
from fastdata.prepare.plan import Work
from fastdata.store.files import MANIFEST, WORK, clear, own_files, sync
from fastdata.store.format import read_manifest
from fastdata.store.versions import version_folder, versions

__all__ = ["is_settled", "replace_store", "settle"]


def replace_store(work: Work) -> None:
    """Put a finished store in the place of the one around it. If another process does it already, leave it to that."""
    root = work.store
    folder = version_folder(root, max([1, *versions(root)]) + 1)
    try:
        work.out.rename(folder)
    except FileNotFoundError:
        return
    _complete(root, folder)


def _complete(root: Path, folder: Path) -> None:
    """Make a version that has its own shards the only store in a folder."""
    sync(root)
    new = [path for path in own_files(folder) if folder / WORK not in path.parents and path.suffix != ".tmp"]
    clear(root, {path for path in own_files(root) if path.is_relative_to(folder) or path.is_relative_to(root / WORK)})
    for path in [*new[1:], new[0]]:  # own_files has the manifest first
        target = root / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        if path.name == MANIFEST:
            for parent in {root, *(root / file.relative_to(folder).parent for file in new)}:
                sync(parent)
        link(path, target)
    sync(root)
    _remove(folder)


def settle(root: Path) -> bool:
    """Complete what a killed process has begun to put in place; return whether there was anything. The folder is claimed."""
    folder = _pending(root)
    left = [path for path in root.glob("version-[0-9]*") if path.suffix != ".tmp" and not (path / MANIFEST).exists()]
    if folder is not None:
        _complete(root, folder)
    for path in left:
        _remove(path)
    return folder is not None or bool(left)


def is_settled(root: Path) -> bool:
    """Return whether no store has begun to take another one's place without being done."""
    return _pending(root) is None


def _pending(root: Path) -> Path | None:
    """Return the newest version, if it has shards of its own, which versions of a store that has grown have not."""
    for number in versions(root)[-1:]:
        with suppress(StoreError):
            if not read_manifest(version_folder(root, number)).shards_in:
                return version_folder(root, number)
    return None


def _remove(folder: Path) -> None:
    """Remove the folder of a version, but not what else lies there."""
    clear(folder)
    with suppress(OSError):  # not empty
        folder.rmdir()
