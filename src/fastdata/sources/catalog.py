"""All kinds of archives: which one SOURCE is, its inputs, and the bytes of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources import arrow, cifar, given, hdf5, idx, lmdb_source, parquet, streamed, tar
from fastdata.sources.archive import Chosen, Folder, Kind
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.options import NO_LABELS, StrPath
from fastdata.sources.patterns import expand, locate, split_key

__all__ = ["KINDS", "list_archives", "read_source"]

KINDS: tuple[Kind, ...] = (
    tar.KIND,
    parquet.KIND,
    arrow.KIND,
    given.KIND,
    idx.KIND,
    cifar.KIND,
    hdf5.KIND,
    streamed.KIND,
    lmdb_source.KIND,
)
_BY_NAME = {kind.name: kind for kind in KINDS}


def list_archives(source: StrPath, label_column: Sequence[str] = ()) -> SourceList | None:
    """The inputs of SOURCE; None, if it is one path and no archive, or nothing. label_column: where labels are, if not where they
    are looked for; NO_LABELS: nowhere.

    Raises:
        PrepError: an archive can't be read, several kinds are mixed, or splits lie side by side.
    """
    text, key = split_key(source)
    files = expand(text)
    if len(files) == 1 and files[0].is_dir() and not any(kind.takes(files[0]) for kind in KINDS):
        kind, files = _inside(files[0])
    elif files == [Path(text)] and not any(kind.takes(files[0]) for kind in KINDS):
        return None
    else:
        kind = _kind(files)
    if kind is None:
        return None
    if len(label_column) > 1:
        raise PrepError(f"--label-column {' and '.join(label_column)}: an archive's label is one column; give the one")
    column = "".join(label_column)
    if column not in ("", NO_LABELS) and not kind.has_columns:
        raise PrepError(f"--label-column {column}: SOURCE {source} has no columns; only {NO_LABELS} can be meant here")
    return kind.inputs(locate(source)[0], files, Chosen(key, column))


def _inside(path: Path) -> tuple[Kind | None, list[Path]]:
    """The archives in a folder that holds nothing else."""
    try:
        with os.scandir(path) as entries:
            seen = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith("."))
    except OSError:  # said better where folders of images are listed
        return None, []
    folder = Folder(path, tuple(name for name, inner in seen if not inner), tuple(name for name, inner in seen if inner))
    for kind in KINDS:
        if files := kind.inside(folder):
            return kind, files
    return None, []


def _kind(files: list[Path]) -> Kind | None:
    """The kind of all of them."""
    found = [next((kind for kind in KINDS if kind.takes(path)), None) for path in files]
    if None in found:
        raise PrepError(
            f"{files[found.index(None)]} is no archive that is known: several files at once may be .tar, .parquet, .arrow, idx, "
            "CIFAR or HDF5; for images give their folder, or a .csv file of paths"
        )
    if len(set(found)) > 1:
        names = " and ".join(sorted({kind.name for kind in found if kind}))
        raise PrepError(f"SOURCE mixes {names}; prepare each kind by itself")
    return found[0] if found else None


def read_source(root: StrPath, source: Source) -> bytes:
    """The bytes of an input's image file. The archive stays open until another is read, or `release` is called.

    Raises:
        CodecError: the archive is damaged there, or holds no image there.
        OSError: it can't be read.
    """
    if not source.place:
        return (Path(root) / source.name).read_bytes()
    name, file, *where = source.place
    return _BY_NAME[str(name)].read(Path(root) / str(file), *where)
