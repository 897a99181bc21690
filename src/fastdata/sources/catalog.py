"""The kinds of archives: find the kind of SOURCE, list its inputs, and read the bytes of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext

from fastdata.errors import PrepError
from fastdata.sources import arrow, given, parquet, streamed, tar
from fastdata.sources.archive import Folder, Kind, Selection
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.labels import read_classes
from fastdata.sources.options import NO_LABELS, LabelOptions, StrPath
from fastdata.sources.patterns import expand, locate, split_key
from fastdata.sources.urls import AnyPath, UrlPath, join, to_path

__all__ = ["KINDS", "kind_of", "list_archives", "read_source"]

KINDS: tuple[Kind, ...] = (tar.KIND, parquet.KIND, arrow.KIND, given.KIND, streamed.KIND)
_BY_NAME = {kind.name: kind for kind in KINDS}


def list_archives(
    source: StrPath,
    options: LabelOptions,
    fields: Sequence[str] = (),
    endings: Sequence[str] = (),
    images: Sequence[str] = (),
) -> SourceList | None:
    """List the inputs of SOURCE. Return None if it is a single path that is not an archive, or does not exist.

    Args:
        options: which labels to take.
        fields, endings: other columns, and members of a sample, that are wanted.
        images: the endings of the images of a sample, if it has several.

    Raises:
        PrepError: an archive cannot be read, SOURCE mixes several kinds, or it holds several splits.
    """
    path, key = split_key(source)
    files = expand(path)
    if len(files) == 1 and files[0].is_dir() and not any(kind.takes(files[0]) for kind in KINDS):
        kind, files = _inside(files[0])
    elif files == [path] and not any(kind.takes(files[0]) for kind in KINDS):
        return None
    else:
        kind = _kind(files)
    if kind is None:
        return None
    if len(options.regression) > 1:
        raise PrepError(f"--regression {' and '.join(options.regression)}: an archive has one label column; give only one")
    elsewhere = options.labels is not None or options.label_from is not None
    column = NO_LABELS if elsewhere else "".join(options.regression) or options.label_column or ""
    if column not in ("", NO_LABELS, *options.regression) and not kind.has_columns:
        raise PrepError(f"--label-column {column}: SOURCE {source} has no columns; here it can only be {NO_LABELS}")
    if images and not kind.has_several:
        raise PrepError(f"--images: SOURCE {source} is {kind.name}, but several images come from folders or from WebDataset tars")
    asked = (None, ()) if column == NO_LABELS else (read_classes(options.classes), options.regression)
    return kind.inputs(locate(source)[0], files, Selection(key, column, tuple(fields), tuple(endings), tuple(images), *asked))


def _inside(path: AnyPath) -> tuple[Kind | None, list[AnyPath]]:
    """Return the archives in a folder that holds nothing else, and their kind."""
    try:
        with nullcontext(path.scan()) if isinstance(path, UrlPath) else os.scandir(path) as entries:
            listed = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith("."))
    except OSError:  # listing it as a folder of images reports this better
        return None, []
    folder = Folder(path, tuple(name for name, is_dir in listed if not is_dir), tuple(name for name, is_dir in listed if is_dir))
    for kind in KINDS:
        if files := kind.inside(folder):
            return kind, files
    return None, []


def _kind(files: list[AnyPath]) -> Kind | None:
    """Return the kind that all the files have; None if there are no files."""
    kinds = [next((kind for kind in KINDS if kind.takes(path)), None) for path in files]
    if None in kinds:
        raise PrepError(
            f"{files[kinds.index(None)]} is not a known archive: several files at once may be .tar, .parquet or .arrow; for images "
            "give their folder, or a .csv file of paths"
        )
    if len(set(kinds)) > 1:
        names = " and ".join(sorted({kind.name for kind in kinds if kind}))
        raise PrepError(f"SOURCE mixes {names}; prepare each kind by itself")
    return kinds[0] if kinds else None


def kind_of(source: Source) -> Kind | None:
    """Return the kind of the archive that an input lies in; None: it is a file."""
    return _BY_NAME[str(source.place[0])] if source.place else None


def read_source(root: StrPath, source: Source) -> bytes:
    """Read the bytes of an input's image file. The archive stays open until another is read, or `release` is called.

    Raises:
        CodecError: the archive is damaged there, or holds no image there.
        OSError: the file cannot be read.
    """
    if not source.place:
        return join(to_path(root), source.name).read_bytes()
    name, file, *where = source.place
    return _BY_NAME[str(name)].read(to_path(root) / str(file), *where)
