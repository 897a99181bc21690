"""Put a finished store in the place of another one, in whose work folder it was made.

Its folder is moved beside the files of the old store. Then the manifest of that is removed, from which moment readers get the new
store, and its other files; and the files of the new one are linked to where they belong, the manifest last. So the folder holds a
whole store at any moment, and ends as if there had never been another.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fastdata.prepare.plan import Work
from fastdata.store.files import MANIFEST, NEXT, WORK, clear, link, own_files, sync

__all__ = ["is_settled", "replace_store", "settle"]


def replace_store(work: Work) -> None:
    """Put a finished store in the place of the one around it. If another process does it already, leave it to that."""
    with suppress(FileNotFoundError):
        work.out.rename(work.store / NEXT)
        _complete(work.store)


def settle(root: Path) -> bool:
    """Complete what a killed process has begun to put in place; return whether there was anything. The folder is claimed."""
    if not (root / NEXT).exists():
        return False
    if is_settled(root):
        _remove(root / NEXT)
    else:
        _complete(root)
    return True


def is_settled(root: Path) -> bool:
    """Return whether no store has begun to take another one's place without being done."""
    return not (root / NEXT / MANIFEST).exists()


def _complete(root: Path) -> None:
    """Make the store beside the files of another one the only store in a folder."""
    sync(root)
    folder = root / NEXT
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


def _remove(folder: Path) -> None:
    """Remove what a store has left, but not what else lies there."""
    clear(folder)
    with suppress(OSError):  # not empty
        folder.rmdir()
