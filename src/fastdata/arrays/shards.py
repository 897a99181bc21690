"""Shards of arrays, which are cut into chunks; and the store's tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fastdata.arrays.files import ArraySource, check_geometry, check_values, read_array
from fastdata.arrays.sections import MAX_AXES, Arrays, samples_dtype, touched
from fastdata.errors import CodecError
from fastdata.images.sections import Masks
from fastdata.kinds import Tables
from fastdata.prepare.plan import Plan, PrepareRun
from fastdata.prepare.worker import ProgressReport, ShardTask, Writers, reject_of
from fastdata.sources.inputs import Source, detail_of, reason_of
from fastdata.sources.urls import to_path
from fastdata.store.manifest import MASK, Form
from fastdata.types import Array

CHUNK_BYTES = 1 << 20  # most bytes of a chunk, all channels included
# A 64^3 crop touches at most 3^3 chunks of 32^3: 3.4 times its bytes. In two axes, chunks fill LMDB's pages.
SIDES = {1: (32_752,), 2: (127, 128), 3: (32, 32, 32), 4: (16, 16, 16, 16), 5: (8, 8, 8, 8, 8)}


@dataclass(frozen=True)
class ArrayRecipe:
    """The recipe of a store of arrays."""

    kind: ClassVar[str] = "arrays"
    unit: ClassVar[str] = "B"

    dtype: str  # of all arrays; those of another one are converted if every value stays the same
    rounded: bool  # whether the user chose the dtype; if it is a float, values are then rounded to it
    chunk: tuple[int, ...]  # sides of the chunks, one for each axis except channels
    channels: str  # "none", or the axis of channels, "first" or "last"; it is stored first and never cut
    key: str  # of the array to take from .npz files; empty: all arrays
    max_bytes: int  # larger arrays are rejected before they are read
    mask_bits: int  # of the classes of masks, 8 or 16; 0: there are no masks
    libraries: tuple[str, ...] = ()  # packages that read the files
    order: str = field(default="listed", metadata={"newer": True})
    shard_samples: int | None = field(default=None, metadata={"newer": True})

    def variants(self) -> list[tuple[str, int | None, Form]]:
        """Return (name, size, form) of each variant."""
        found: list[tuple[str, int | None, Form]] = [("array", None, Form("chunks", 1, self.dtype))]
        if self.mask_bits:
            found.append((f"{MASK}array", None, Form("chunks", 1, f"uint{self.mask_bits}")))
        return found


def default_chunk(axes: int, cell: int) -> tuple[int, ...]:
    """Return the sides of chunks for arrays with this many axes. cell: bytes of an element, all channels together."""
    sides = list(SIDES[axes])
    while math.prod(sides) * cell > CHUNK_BYTES and max(sides) > 1:
        sides = [max(1, side // 2) for side in sides]
    return tuple(sides)


def laid_out(shape: tuple[int, ...], channels: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of channels (1 without such an axis) and the sides of the other axes, or raise a CodecError."""
    axes = {"none": ((), shape), "first": (shape[:1], shape[1:]), "last": (shape[-1:], shape[:-1])}
    count, sides = axes[channels]
    if not 1 <= len(sides) <= MAX_AXES:
        raise CodecError(f"its shape is {shape}, but must have 1 to {MAX_AXES} axes besides channels", "axes")
    if not math.prod(shape):
        raise CodecError(f"its shape is {shape}: it is empty", "empty")
    return math.prod(count), sides


PLAN_TYPES = ArrayRecipe, (Source, ArraySource)


def _load(job: PrepareRun, source: ArraySource, skip: tuple[str, str] | None = None) -> list[Array] | tuple[str, str]:
    """Return an array, [channels, ...] or [...], and its mask, if there are masks; or why they cannot be stored.

    Both may be mapped from their files. A reason and a detail hold no path: a store is the same anywhere.
    """
    options: ArrayRecipe = job.plan.options
    if skip is not None or source.problem:
        return skip or (reason_of(source.problem), detail_of(source.problem))
    masks, of_mask = list[Array](), False
    try:
        path = to_path(job.plan.roots[0]) / source.file
        values = read_array(path, source.key or options.key or None, options.max_bytes)
        _, sides = laid_out(values.shape, options.channels)
        if len(sides) != len(options.chunk):
            channels = "" if options.channels == "none" else " besides channels"
            raise CodecError(f"its shape is {values.shape}, but the store has {len(options.chunk)} axes{channels}", "axes")
        check_values(values, options.dtype, rounded=options.rounded)
        if of_mask := bool(options.mask_bits):
            mask_path = to_path(job.plan.roots[1]) / source.companions[0].name
            mask = read_array(mask_path, None, options.max_bytes)
            if mask.shape != sides:
                raise CodecError(f"its shape is {mask.shape}, but the array's is {sides}", "size")
            check_geometry(path, mask_path)
            check_values(mask, f"uint{options.mask_bits}", say="--mask-bits")
            masks = [mask]
    except Exception as error:  # noqa: BLE001  a library may raise anything for a bad file, which becomes a reject
        reason, detail = reject_of(error)
        return (f"mask-{reason}", f"the mask: {detail}") if of_mask else (reason, detail)
    return [np.moveaxis(values, -1, 0) if options.channels == "last" else values, *masks]


def _records(arrays: list[Array], options: ArrayRecipe) -> Iterator[list[Array]]:
    """Yield each chunk of the array as it is stored, with the chunk of its mask."""
    values, *masks = arrays
    channels = () if options.channels == "none" else (slice(None),)
    shape = values.shape[len(channels) :]
    for _, _, _, box in touched(shape, options.chunk, (0,) * len(shape), shape):
        chunk = values[channels + box].astype(np.dtype(options.dtype).newbyteorder("<"), order="C")
        yield [chunk, *(mask[box].astype(f"<u{options.mask_bits // 8}", order="C") for mask in masks)]


def make_shard(job: PrepareRun, task: ShardTask, writers: Writers, progress: ProgressReport) -> dict[str, Any]:
    """Store the arrays of a task. Return a row for each: input number, shape, and number of chunks."""
    rows: list[tuple[int, list[int], int]] = []
    rejects: list[dict[str, Any]] = []
    classes = Counter[int]()
    for position, source in enumerate(task.sources):
        progress.at(position)
        number, size = task.first + position, max(source.size, 0)
        arrays = _load(job, source, task.skip.get(position))
        if isinstance(arrays, tuple):
            rejects.append({"source": number, "name": source.name, "reason": arrays[0], "detail": arrays[1]})
            progress.add(finished=size, rejected=1)
            continue
        count = 0
        for chunks in _records(arrays, job.plan.options):
            writers.append([chunk.tobytes() for chunk in chunks])
            count += 1
            for mask in chunks[1:]:
                found = np.bincount(mask.reshape(-1))
                classes.update({k: int(found[k]) for k in np.flatnonzero(found).tolist()})
        rows.append((number, list(arrays[0].shape), count))
        progress.add(finished=size)
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
    voxels = sum((Counter(table["classes"]) for table in found), Counter[str]())
    masks = Masks((), {k: voxels[k] for k in sorted(voxels, key=int)}) if options.mask_bits else None
    return Tables(
        samples=samples,
        names=(plan.sources[row[0]].name for row in rows),
        records=tuple(sum(row[2] for row in table["rows"]) for table in found),
        sections={"arrays": Arrays(options.chunk, options.channels != "none"), "masks": masks},
    )
