"""Make shards of arrays in a worker, and the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.arrays.chunks import MAX_AXES, boxes
from fastdata.arrays.files import ArraySource, check_values, ending_of, npz_names, read_array
from fastdata.arrays.recipe import ArrayRecipe, laid_out
from fastdata.arrays.sections import Arrays, samples_dtype
from fastdata.errors import CodecError
from fastdata.images.sections import Masks
from fastdata.kinds import Tables
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import Job, Progress, Task, Writers, reject_of
from fastdata.sources.inputs import Source
from fastdata.sources.notes import detail_of, reason_of
from fastdata.sources.urls import AnyPath, to_path

__all__ = ["make_shard", "tables"]

Array = np.ndarray[Any, np.dtype[Any]]

PLAN_TYPES = ArrayRecipe, (Source, ArraySource)


def _load(job: Job, source: ArraySource, skip: tuple[str, str] | None = None) -> list[Array] | tuple[str, str]:
    """Return an array, [channels, ...] or [...], and its mask, if there are masks; or why they cannot be stored.

    Both may be mapped from their files. A reason and a detail hold no path: a store is the same anywhere.
    """
    options: ArrayRecipe = job.options
    if skip is not None:
        return skip
    if source.problem:
        return reason_of(source.problem), detail_of(source.problem)
    try:
        values = read_array(to_path(job.roots[0]) / source.file, source.key or options.key or None, options.max_bytes)
        _, sides = laid_out(values.shape, options.channels)
        if len(sides) != len(options.chunk):
            channels = "" if options.channels == "none" else ", channels aside"
            raise CodecError(f"its shape is {values.shape}: the store is of {len(options.chunk)} axes{channels}", "axes")
        masks = [_load_mask(to_path(job.roots[1]) / source.companions[0].name, sides, options)] if options.mask_bits else []
        check_values(values, options.dtype, rounded=options.rounded)
    except Exception as error:  # noqa: BLE001  a library may raise anything for a bad file, which becomes a reject
        return reject_of(error)
    return [np.moveaxis(values, -1, 0) if options.channels == "last" else values, *masks]


def _load_mask(path: AnyPath, sides: tuple[int, ...], options: ArrayRecipe) -> Array:
    try:
        several = ending_of(path.name) == ".npz" and len(npz_names(path)) > 1
        mask = read_array(path, (options.key or None) if several else None, options.max_bytes)
        if mask.shape != sides:
            raise CodecError(f"the mask is {mask.shape}, its array {sides}", "size")
        check_values(mask, f"uint{options.mask_bits}", say="--mask-bits")
    except CodecError as error:
        raise CodecError(f"the mask: {error}", f"mask-{error.reason}") from None
    return mask


def _records(arrays: list[Array], options: ArrayRecipe) -> Iterator[list[Array]]:
    """Yield each chunk of the array as it is stored, and that of its mask."""
    values, *masks = arrays
    channels = () if options.channels == "none" else (slice(None),)
    for box in boxes(values.shape[len(channels) :], options.chunk):
        chunk = values[channels + box].astype(np.dtype(options.dtype).newbyteorder("<"), order="C")
        yield [chunk, *(mask[box].astype(f"<u{options.mask_bits // 8}", order="C") for mask in masks)]


def make_shard(job: Job, task: Task, writers: Writers, progress: Progress) -> dict[str, Any]:
    """Store the arrays of a task. A row is the number of the input, its shape, and the number of its chunks."""
    rows: list[tuple[int, list[int], int]] = []
    rejects: list[dict[str, Any]] = []
    classes: Counter[int] = Counter()
    for place, source in enumerate(task.sources):
        progress.at(place)
        number, size = task.first + place, max(source.size, 0)
        arrays = _load(job, source, task.skip.get(place))
        if isinstance(arrays, tuple):
            rejects.append({"source": number, "name": source.name, "reason": arrays[0], "detail": arrays[1]})
            progress.add(done=size, rejected=1)
            continue
        count = 0
        for chunks in _records(arrays, job.options):
            writers.append([chunk.tobytes() for chunk in chunks])
            count += 1
            for mask in chunks[1:]:
                found = np.bincount(mask.reshape(-1))
                classes.update({k: int(found[k]) for k in np.flatnonzero(found).tolist()})
        rows.append((number, list(arrays[0].shape), count))
        progress.add(done=size)
    return {"kept": len(rows), "rows": rows, "rejects": rejects, "classes": classes}


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Make a row for each array."""
    options = plan.options
    rows = [row for table in found for row in table["rows"]]
    samples = np.zeros(len(rows), samples_dtype(plan))
    samples["source"] = [row[0] for row in rows]
    label = samples["label"]
    label[...] = np.array([plan.sources[row[0]].label for row in rows], label.dtype).reshape(label.shape)
    if rows:
        samples["shape"] = [row[1] + [0] * (MAX_AXES + 1 - len(row[1])) for row in rows]
        samples["first"][1:] = np.cumsum([row[2] for row in rows])[:-1]
    voxels = sum((Counter({int(k): count for k, count in table["classes"].items()}) for table in found), Counter[int]())
    masks = Masks((), {str(k): voxels[k] for k in sorted(voxels)}) if options.mask_bits else None
    return Tables(
        samples=samples,
        names=(plan.sources[row[0]].name for row in rows),
        records=tuple(sum(row[2] for row in table["rows"]) for table in found),
        sections={"arrays": Arrays(options.chunk, options.channels != "none"), "masks": masks},
    )
