"""Make shards of arrays in a worker, and the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.arrays.chunks import MAX_AXES, boxes
from fastdata.arrays.convert import check_values
from fastdata.arrays.readers import checked, npz_names, open_array
from fastdata.arrays.recipe import ArrayRecipe, laid_out
from fastdata.arrays.sections import Arrays, samples_dtype
from fastdata.arrays.source import ArraySource, ending_of
from fastdata.errors import CodecError
from fastdata.images.sections import Masks
from fastdata.kinds import Probed, Tables
from fastdata.prepare.plan import Plan, Roots
from fastdata.prepare.worker import Job, Progress, Task, Writers, reject_of
from fastdata.sources.inputs import Source
from fastdata.sources.reasons import detail_of, reason_of
from fastdata.sources.urls import AnyPath, to_path

__all__ = ["Loaded", "kept", "load", "make_shard", "probe", "records", "tables"]

Array = np.ndarray[Any, np.dtype[Any]]

PLAN_TYPES = ArrayRecipe, (Source, ArraySource)

PROBES, PROBE_BYTES = 32, 1 << 30


class Loaded(NamedTuple):
    """An array that can be stored, [channels, ...] or [...], and its mask. Both may be mapped from their files."""

    values: Array
    mask: Array | None


def load(roots: Sequence[AnyPath], source: ArraySource, options: ArrayRecipe) -> Loaded:
    """Read an input and its mask, and check all values.

    Raises:
        CodecError: if one of them is damaged or does not fit; `reason` is one word.
    """
    opened = checked(open_array(roots[0], source, options.key or None), options.max_bytes)
    _, sides = laid_out(opened.shape, options.channels)
    if len(sides) != len(options.chunk):
        channels = "" if options.channels == "none" else ", channels aside"
        raise CodecError(f"its shape is {opened.shape}: the store is of {len(options.chunk)} axes{channels}", "axes")
    mask = _load_mask(roots[1], source.companions[0].name, sides, options) if options.mask_bits else None
    values = opened.read()
    check_values(values, options.dtype, rounded=options.rounded)
    return Loaded(np.moveaxis(values, -1, 0) if options.channels == "last" else values, mask)


def _load_mask(root: AnyPath, name: str, sides: tuple[int, ...], options: ArrayRecipe) -> Array:
    several = ending_of(name) == ".npz" and len(npz_names(root / name)) > 1
    try:
        opened = checked(open_array(root, ArraySource(name, -1, -1), (options.key or None) if several else None), options.max_bytes)
        if opened.shape != sides:
            raise CodecError(f"the mask is {opened.shape}, its array {sides}", "size")
        mask = opened.read()
        check_values(mask, f"uint{options.mask_bits}", say="--mask-bits")
    except CodecError as error:
        raise CodecError(f"the mask: {error}", f"mask-{error.reason}") from None
    return mask


def records(loaded: Loaded, options: ArrayRecipe) -> Iterator[list[Array]]:
    """Yield each chunk of the array as it is stored, and that of its mask."""
    dtype = np.dtype(options.dtype).newbyteorder("<")
    classes = np.dtype(f"<u{options.mask_bits // 8 or 1}")
    channels = () if options.channels == "none" else (slice(None),)
    for box in boxes(loaded.values.shape[len(channels) :], options.chunk):
        chunks = [loaded.values[channels + box].astype(dtype, order="C")]
        if loaded.mask is not None:
            chunks.append(loaded.mask[box].astype(classes, order="C"))
        yield chunks


def make_shard(job: Job, task: Task, writers: Writers, progress: Progress) -> dict[str, Any]:
    """Store the arrays of a task."""
    rows: list[list[Any]] = []
    rejects: list[dict[str, Any]] = []
    classes: Counter[int] = Counter()
    for place, source in enumerate(task.sources):
        progress.at(place)
        loaded = _try(job, source, task.skip.get(place))
        size = max(source.size, 0)
        if isinstance(loaded, Loaded):
            rows.append([task.first + place, *_write(loaded, job.options, writers, classes)])
            progress.add(done=size, size=size)
        else:
            reason, detail = loaded
            rejects.append({"source": task.first + place, "name": source.name, "reason": reason, "detail": detail})
            progress.add(done=size, rejected=1)
    return {"rows": rows, "rejects": rejects, "classes": classes}


def probe(plan: Plan, roots: Roots) -> Probed:
    """Load some arrays, evenly spaced, up to about 1 GiB."""
    job = Job(tuple(map(str, roots)), "", plan.options, "")
    sources = plan.sources
    tried = read = 0
    sizes: list[int] = []
    rejected: Counter[str] = Counter()
    for source in sources[:: -(-len(sources) // PROBES)]:
        if read > PROBE_BYTES:
            break
        loaded = _try(job, source, None)
        tried += 1
        read += max(source.size, 0)
        if isinstance(loaded, Loaded):
            sizes += [chunk.nbytes for chunks in records(loaded, plan.options) for chunk in chunks]
        else:
            rejected[loaded[0]] += 1
    return Probed(len(sources), tried, sum(max(s.size, 0) for s in sources) / max(read, 1), sizes, rejected)


def _try(job: Job, source: Any, skip: tuple[str, str] | None) -> Loaded | tuple[str, str]:
    """Load an input, or return the reason and detail of its rejection. Details hold no path: a store is the same anywhere."""
    if skip is not None:
        return skip
    if source.problem:
        return reason_of(source.problem), detail_of(source.problem)
    try:
        return load([to_path(root) for root in job.roots], source, job.options)
    except Exception as error:  # noqa: BLE001  a library may raise anything for a bad file, which becomes a reject
        return reject_of(error)


def _write(loaded: Loaded, options: ArrayRecipe, writers: Writers, classes: Counter[int]) -> list[Any]:
    """Write the chunks of an array, and return its shape and their number."""
    count = 0
    for chunks in records(loaded, options):
        writers.append([chunk.tobytes() for chunk in chunks])
        count += 1
        if loaded.mask is not None:
            found = np.bincount(chunks[1].reshape(-1))
            classes.update({k: int(found[k]) for k in np.flatnonzero(found).tolist()})
    return [list(loaded.values.shape), count]


def kept(table: dict[str, Any]) -> int:
    """Return the number of arrays in a shard."""
    return len(table["rows"])


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Make a row for each array."""
    options = plan.options
    rows = [row for table in found for row in table["rows"]]
    samples = np.zeros(len(rows), samples_dtype(plan.labels))
    samples["source"] = [row[0] for row in rows]
    label = samples["label"]
    label[...] = np.array([plan.sources[row[0]].label for row in rows], label.dtype).reshape(label.shape)
    if rows:
        samples["shape"] = [row[1] + [0] * (MAX_AXES + 1 - len(row[1])) for row in rows]
        samples["first"][1:] = np.cumsum([row[2] for row in rows])[:-1]
    return Tables(
        samples=samples,
        names=(plan.sources[row[0]].name for row in rows),
        counts=tuple(map(kept, found)),
        records=tuple(sum(row[2] for row in table["rows"]) for table in found),
        sections={"arrays": Arrays(options.chunk, options.channels != "none"), "masks": _masks(options, found)},
    )


def _masks(options: ArrayRecipe, found: Sequence[dict[str, Any]]) -> Masks | None:
    if not options.mask_bits:
        return None
    voxels: Counter[int] = Counter()
    for table in found:
        voxels.update({int(k): count for k, count in table["classes"].items()})
    return Masks((), {str(k): voxels[k] for k in sorted(voxels)})
