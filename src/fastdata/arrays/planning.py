"""List the inputs of arrays, and make a plan. The first readable input decides the dtype and the number of axes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastdata.arrays.files import ENDINGS, NIFTI, ArraySource, ending_of, npz_names, read_array, stem_of
from fastdata.arrays.kind import ArrayOptions
from fastdata.arrays.shards import ArrayRecipe, default_chunk, laid_out
from fastdata.errors import CodecError, PrepError, needs
from fastdata.prepare.plan import Plan, make_plan
from fastdata.prepare.worker import reject_of
from fastdata.sources.files import look
from fastdata.sources.folder import list_folder, with_files
from fastdata.sources.inputs import Source, SourceList, detail_of, label_notes
from fastdata.sources.listing import labelled, skipped_files
from fastdata.sources.tables import is_path_table, list_table
from fastdata.sources.urls import AnyPath, explain_missing, to_path
from fastdata.store.columns import NUMBERS
from fastdata.store.manifest import Labels
from fastdata.types import StrPath

MIN_SHARD = 1, 1 << 20  # samples and bytes of a shard
MAX_BYTES = 1 << 32  # of an array, unless the user says otherwise
LISTED = frozenset((*ENDINGS, ".gz"))  # os.path.splitext returns .gz for .nii.gz


def plan_source(source: StrPath, out: Path, options: ArrayOptions, limit: int | None) -> Plan:
    """List the inputs and decide how to store them. Raise PrepError if none can be stored, ValueError if an option is wrong."""
    if options.dtype not in (None, *NUMBERS):
        raise ValueError(f"--dtype is {options.dtype}, but must be one of {', '.join(NUMBERS)}")
    masks = None if options.masks is None else to_path(options.masks)
    found = _list_arrays(to_path(source), options)
    names = [file.name for one in found.sources for file in (one, *one.companions)]
    libraries = ("nibabel",) if any(ending_of(name) in NIFTI for name in names) else ()
    if libraries:
        with needs("nibabel"):
            import nibabel  # noqa: F401  without it, each of these files would become a reject
    dtype, channels, axes = _first(found, options)
    chunk = default_chunk(axes, channels * np.dtype(dtype).itemsize) if options.chunk is None else options.chunk
    chunk = (chunk,) * axes if isinstance(chunk, int) else chunk
    if len(chunk) != axes or min(chunk) < 1:
        sides = ",".join(map(str, chunk))
        raise ValueError(f"--chunk is {sides}, but must have a positive number for each axis except channels: {axes} in all")
    recipe = ArrayRecipe(
        dtype=dtype,
        rounded=options.dtype is not None,
        chunk=chunk,
        channels=options.channels,
        key=options.key or "",
        max_bytes=options.max_bytes or MAX_BYTES,
        mask_bits=0 if masks is None else options.mask_bits,
        libraries=libraries,
        order=options.order or "listed",
        shard_samples=options.shard_samples,
    )
    plan = make_plan(found, recipe, limit, least=MIN_SHARD, companions=() if masks is None else (masks,))
    notes = label_notes(replace(found, sources=plan.sources), masks=masks is not None, no_labels=options.no_labels)
    return replace(plan, notes=(*notes, *found.notes))


def _list_arrays(path: AnyPath, options: ArrayOptions) -> SourceList:
    """List the arrays of a folder, a table or one file. All arrays of an .npz file are listed, unless `--key` chooses one."""
    if path.is_dir():
        files = list_folder(path, LISTED)
    elif is_path_table(path, options.path_column):
        files = list_table(path, options)
    elif path.is_file() and ending_of(path.name) in ENDINGS:
        files = SourceList(path.parent, Labels("none"), [Source(path.name, -1, *look(path))])
    else:
        what = "is neither a folder, nor a table of paths, nor a file of arrays" if path.exists() else "does not exist"
        raise PrepError(f"SOURCE {path} {what}{explain_missing(path)}")
    arrays = [array for file in files.sources for array in _arrays_of(files.root, file, options.key)]
    found = labelled(replace(files, sources=arrays), path, options)
    if not found.sources:
        raise PrepError(f"no arrays in {path}{skipped_files(found)}; files of arrays end in .npy, .npz, .nii or .nii.gz")
    if options.masks is None:
        return found
    return with_files(found, to_path(options.masks), belongs=lambda name: ending_of(name) in ENDINGS, stem=stem_of)


def _arrays_of(root: AnyPath, source: Source, key: str | None) -> list[ArraySource]:
    """Return the arrays of an .npz file, or the file itself."""
    alone = ArraySource(source.name, source.label, source.size, source.problem)
    names = list[str]()
    if ending_of(source.name) == ".npz" and not source.problem and key is None:
        with suppress(Exception):  # whatever zipfile raises for a bad file; reading it later reports the error
            names = npz_names(root / source.name)
    if len(names) < 2:
        return [alone]
    size = source.size // len(names)
    return [replace(alone, name=f"{source.name}/{n}", size=size, key=n) for n in names]


def _first(found: SourceList, options: ArrayOptions) -> tuple[str, int, int]:
    """Return the dtype to store, and the numbers of channels and of other axes, from the first input that can be read."""
    problem = ""
    for source in found.sources:
        if not isinstance(source, ArraySource) or source.problem:
            continue
        try:
            values = read_array(found.root / source.file, source.key or options.key, options.max_bytes or MAX_BYTES)
            channels, sides = laid_out(values.shape, options.channels)
            dtype = options.dtype or ("uint8" if values.dtype.kind == "b" else values.dtype.name)
            if dtype not in NUMBERS:
                raise CodecError(f"no store holds {dtype}: choose another dtype, such as --dtype int64")
            return dtype, channels, len(sides)
        except Exception as error:  # noqa: BLE001  the run will reject it
            problem = problem or f"{source.name}: {reject_of(error)[1]}"
    raise PrepError(f"nothing in {found.root} can be read; one error: {problem or detail_of(found.sources[0].problem)}")
