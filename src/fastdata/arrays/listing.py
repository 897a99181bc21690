"""List the inputs of arrays: files, arrays in .npz files, and series of DICOM slices."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from fastdata.arrays.readers import npz_names
from fastdata.arrays.source import ENDINGS, STACKS, ArraySource, ending_of, needed_packages, stem_of
from fastdata.errors import CodecError, PrepError
from fastdata.remote.path import AnyPath, no_folders, to_path
from fastdata.sources.inputs import Source, SourceList, look
from fastdata.sources.listing import labelled, list_folder, others
from fastdata.sources.options import LabelOptions, StrPath
from fastdata.sources.pairs import with_masks
from fastdata.sources.path_table import list_table
from fastdata.sources.table_file import is_path_table
from fastdata.sources.walk import walk_files
from fastdata.store.format import Labels

__all__ = ["list_arrays"]

ALL = ENDINGS | STACKS
LISTED = ALL | {".gz"}  # os.path.splitext returns .gz for .nii.gz


def list_arrays(source: StrPath, options: LabelOptions, *, masks: StrPath | None, mask_suffix: str, key: str | None) -> SourceList:
    """List the arrays of a folder (one folder per class, or flat), of a table, or of one file.

    The slices of a DICOM series in a folder are one input, named like the folder if no other DICOM series lies there. Each array
    of an .npz file is an input, unless `key` chooses one.

    Raises:
        PrepError: if there is nothing to prepare, or labels or masks do not fit.
        MissingExtraError: if the library that reads some of the files is not installed.
    """
    found = labelled(_regroup(_list_files(to_path(source), options), key), to_path(source), options)
    if not found.sources:
        raise PrepError(f"no arrays in {source}{others(found)}; files of arrays end in .npy, .npz, .nii, .nii.gz or .dcm")
    if masks is not None:
        found = with_masks(found, to_path(masks), mask_suffix, walk=_walk_masks, stem=stem_of)
        needed_packages(source.mask for source in found.sources if source.mask)
    return found


def _list_files(path: AnyPath, options: LabelOptions) -> SourceList:
    if path.is_dir():
        return list_folder(path, LISTED)
    if is_path_table(path):
        return list_table(path, options)
    if path.is_file() and ending_of(path.name) in ALL:
        return SourceList(path.parent, Labels("none"), [Source(path.name, -1, *look(path))])
    what = "is neither a folder, nor a table of paths, nor one of arrays" if path.exists() else "does not exist"
    raise PrepError(f"SOURCE {path} {what}{no_folders(path)}")


def _walk_masks(root: AnyPath) -> Iterator[tuple[str, int, str]]:
    return (file for file in walk_files(root) if ending_of(file[0]) in ALL - {".dcm"})


def _regroup(found: SourceList, key: str | None) -> SourceList:
    """Replace the files by the arrays that they hold."""
    files = [_as_array(found.root, source) for source in found.sources]
    needed_packages(source.name + source.ending for source in files if source.ending)
    if any(source.ending == ".dcm" for source in files):
        files = _series(found.root, files)
    sources = [member for source in files for member in _members(found.root, source, key)]
    names = found.labels.names
    if sources and all(s.files and isinstance(s.label, int) and s.label >= 0 and s.name == names[s.label] for s in sources):
        # each folder holds one series, so folders are not classes
        return replace(found, labels=Labels("none"), sources=[replace(s, label=-1) for s in sources])
    return replace(found, sources=list(sources))


def _as_array(root: AnyPath, source: Source) -> ArraySource:
    """Convert a source, and reject a file without an extension unless it is DICOM."""
    ending, problem = ending_of(source.name), source.problem
    if not problem and not os.path.splitext(source.name)[1] and not _is_dicom(root / source.name):
        ending, problem = "", "not-dicom"
    return ArraySource(source.name, source.label, source.size, problem, ending=ending)


def _is_dicom(path: AnyPath) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return True  # reading it later reports the error


def _series(root: AnyPath, sources: list[ArraySource]) -> list[ArraySource]:
    from fastdata.arrays.dicom import series_of

    """Join the slices of each series in a folder."""
    groups: defaultdict[object, list[ArraySource]] = defaultdict(list)
    folders: Counter[str] = Counter()  # series in each folder
    for number, source in enumerate(sources):
        group: object = number  # alone
        folder = source.name.rpartition("/")[0]
        if source.ending == ".dcm" and source.problem in ("", "no-label"):
            try:
                group = folder, series_of(root / source.name), source.label
            except (CodecError, OSError):
                pass  # reading it later reports the error
            folders[folder] += group not in groups
        groups[group].append(source)
    return [_join(members, folders) for members in groups.values()]


def _join(members: list[ArraySource], folders: Counter[str]) -> ArraySource:
    first = members[0]
    folder = first.name.rpartition("/")[0]
    if first.ending != ".dcm" or first.problem not in ("", "no-label"):
        return first
    name = folder if folder and folders[folder] == 1 else first.name
    return replace(first, name=name, size=sum(s.size for s in members), files=tuple(s.name for s in members))


def _members(root: AnyPath, source: ArraySource, key: str | None) -> list[ArraySource]:
    """Return the arrays of an .npz file, or the source itself."""
    if source.ending != ".npz" or source.problem or key is not None:
        return [source]
    try:
        names = npz_names(root / source.name)
    except (CodecError, OSError):
        return [source]  # reading it later reports the error
    if len(names) < 2:
        return [source]
    size = source.size // len(names)
    return [replace(source, name=f"{source.name}/{n}", size=size, key=n, files=(source.name,)) for n in names]
