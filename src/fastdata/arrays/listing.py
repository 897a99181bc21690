"""List the inputs of arrays: files, and arrays in .npz files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastdata.arrays.readers import npz_names
from fastdata.arrays.source import ENDINGS, ArraySource, ending_of, stem_of
from fastdata.errors import CodecError, PrepError
from fastdata.sources.folder import list_folder, walk_files
from fastdata.sources.inputs import Source, SourceList, look
from fastdata.sources.listing import labelled, others
from fastdata.sources.options import LabelOptions, StrPath
from fastdata.sources.pairs import with_masks
from fastdata.sources.path_table import list_table
from fastdata.sources.tables import is_path_table
from fastdata.sources.urls import AnyPath, explain_missing, to_path
from fastdata.store.format import Labels

__all__ = ["list_arrays"]

LISTED = frozenset((*ENDINGS, ".gz"))  # os.path.splitext returns .gz for .nii.gz


def list_arrays(source: StrPath, options: LabelOptions, *, masks: StrPath | None, key: str | None) -> SourceList:
    """List the arrays of a folder (one folder per class, or flat), of a table, or of one file.

    Each array of an .npz file is an input, unless `key` chooses one.

    Raises:
        PrepError: if there is nothing to prepare, or labels or masks do not fit.
    """
    files = _list_files(to_path(source), options)
    arrays = [array for file in files.sources for array in _arrays_of(files.root, file, key)]
    found = labelled(replace(files, sources=arrays), to_path(source), options)
    if not found.sources:
        raise PrepError(f"no arrays in {source}{others(found)}; files of arrays end in .npy, .npz, .nii or .nii.gz")
    if masks is not None:
        found = with_masks(found, to_path(masks), walk=_walk_masks, stem=stem_of)
    return found


def _list_files(path: AnyPath, options: LabelOptions) -> SourceList:
    if path.is_dir():
        return list_folder(path, LISTED)
    if is_path_table(path, options.path_column):
        return list_table(path, options)
    if path.is_file() and ending_of(path.name) in ENDINGS:
        return SourceList(path.parent, Labels("none"), [Source(path.name, -1, *look(path))])
    what = "is neither a folder, nor a table of paths, nor one of arrays" if path.exists() else "does not exist"
    raise PrepError(f"SOURCE {path} {what}{explain_missing(path)}")


def _walk_masks(root: AnyPath) -> Iterator[tuple[str, int, str]]:
    return (file for file in walk_files(root) if ending_of(file[0]) in ENDINGS)


def _arrays_of(root: AnyPath, source: Source, key: str | None) -> list[ArraySource]:
    """Return the arrays of an .npz file, or the file itself."""
    alone = ArraySource(source.name, source.label, source.size, source.problem)
    if ending_of(source.name) != ".npz" or source.problem or key is not None:
        return [alone]
    try:
        names = npz_names(root / source.name)
    except (CodecError, OSError):
        return [alone]  # reading it later reports the error
    if len(names) < 2:
        return [alone]
    size = source.size // len(names)
    return [replace(alone, name=f"{source.name}/{n}", size=size, key=n, archive=source.name) for n in names]
