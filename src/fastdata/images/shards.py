"""Make shards of images in a worker, and the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.errors import CodecError, MachineError
from fastdata.images.prepare import ImageRecipe, Record, Room, prepare_image, unlimited
from fastdata.images.sections import Masks, samples_dtype
from fastdata.images.tokens import encode_columns
from fastdata.kinds import Probed, Tables
from fastdata.prepare.plan import Plan, Roots
from fastdata.prepare.worker import Job, Progress, Task, Writers, reject_of
from fastdata.sources.base import read_source, release
from fastdata.sources.inputs import Source
from fastdata.sources.instances import box_notes, in_pixels
from fastdata.sources.notes import listed
from fastdata.sources.parts import file_parts, read_fields
from fastdata.sources.reasons import detail_of, reason_of
from fastdata.sources.urls import AnyPath, join, read_ahead, to_path
from fastdata.system.machine import room
from fastdata.words import number_of, was

__all__ = ["kept", "make_shard", "probe", "tables"]

PLAN_TYPES = ImageRecipe, (Source,)
PROBES = 32
SCRATCH_BYTES = 1 << 26

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def _scratch() -> Array:
    """Return the memory that a worker decodes every image into."""
    cv2.setNumThreads(1)
    return decode_buffer(SCRATCH_BYTES)


def make_shard(job: Job, task: Task, writers: Writers, progress: Progress) -> dict[str, Any]:
    """Prepare the images of a task in every size."""
    rows: list[list[Any]] = []
    rejects: list[dict[str, Any]] = []
    classes: Counter[int] = Counter()
    originals = [0] * len(job.options.variants())
    counts = Counter[str]()
    for place, source in enumerate(_with_files(job, task, progress)):
        progress.at(place)
        own = Counter[str]()
        result, values = _try(job, source, task.skip.get(place), own, partial(_room, job, source, progress, place))
        if isinstance(result, tuple):
            rejects.append({"source": task.first + place, "name": source.name, "reason": result[0], "detail": result[1]})
            progress.add(done=1, rejected=1)
        else:
            writers.append([record.data for record in result], values)
            sizes = [[r.height, r.width] for r in result]
            rows.append([task.first + place, sizes])
            classes.update(next((record.classes for record in result if record.classes), {}))
            counts.update(own)
            originals = [count + record.original for count, record in zip(originals, result, strict=True)]
            progress.add(done=1)
    return {"rows": rows, "rejects": rejects, "classes": classes, "originals": originals, "counts": counts}


def _with_files(job: Job, task: Task, progress: Progress) -> Iterable[Source]:
    """Return the sources of a task; those in object storage come when their bytes are here."""
    roots = [to_path(root) for root in job.roots]
    if all(isinstance(root, Path) for root in roots) and not any("://" in source.name for source in task.sources):
        return task.sources
    endings = [field.ending for field in job.fields if field.ending]

    def wanted(numbered: tuple[int, Source]) -> Iterator[AnyPath]:
        place, source = numbered
        if source.problem or place in task.skip:
            return
        for folder, companion in zip(roots[1:], source.companions, strict=True):
            if not companion.place:
                yield folder / companion.name
        if not source.place:
            yield from (join(roots[0], name) for name in (source.name, *file_parts(source, endings)))

    return (source for _, source in read_ahead(enumerate(task.sources), wanted, lambda numbered: max(numbered[1].size, 0)))


def probe(plan: Plan, roots: Roots) -> Probed:
    """Prepare up to 32 images, to estimate the store."""
    threads = cv2.getNumThreads()
    count = len(plan.sources)
    job = Job(tuple(map(str, roots)), "", plan.options, "", plan.columns, plan.fields, plan.files)
    places = [k * count // min(PROBES, count) for k in range(min(PROBES, count))]
    results = [_try(job, plan.sources[place], None, Counter())[0] for place in places]
    cv2.setNumThreads(threads)
    release()
    sizes = [len(record.data) for result in results if isinstance(result, list) for record in result]
    rejected = Counter(result[0] for result in results if isinstance(result, tuple))
    return Probed(count, len(results), count / len(results), sizes, rejected)


@contextmanager
def _room(job: Job, source: Source, progress: Progress, place: int, need: int) -> Iterator[None]:
    """Make sure of the memory for an image. A worker that waits for its turn is no decoder that hangs."""
    try:
        with room(need, job.share, waiting=lambda: progress.at(-1)):
            progress.at(place)
            yield
    except MachineError as error:
        advice = "run again with fewer --workers or on a machine with more memory, or plan again with a smaller --max-pixels"
        raise MachineError(f"{source.name}: {error}: {advice}, which rejects it") from None


def _try(
    job: Job, source: Source, skip: tuple[str, str] | None, counts: Counter[str], room: Room = unlimited
) -> tuple[list[Record] | tuple[str, str], list[Any]]:
    """Return a source's records and values, or the reason and detail of its rejection.

    Details have no paths: a store is the same anywhere. `counts` counts what `_notes` tells: texts that
    were cut, by column, and boxes.
    """
    if skip is not None:
        return skip, []
    if source.problem:
        return (reason_of(source.problem), detail_of(source.problem)), []
    try:
        called = [*(image.name for image in job.options.images[1:]), *(["mask"] if job.options.mask else [])]
        data = read_source(job.roots[0], source)
        companions = [_companion(*found) for found in zip(called, job.roots[1:], source.companions, strict=True)]
        mask = companions.pop()[1] if job.options.mask else None
        records = prepare_image(data, job.options, scratch=_scratch(), mask=mask, others=companions, room=room)
        values = read_fields(job.roots[0], source, job.fields)
        values = in_pixels(job.fields, values, records[0].source, counts)
        return records, encode_columns(job.columns, values, job.files, counts)
    except Exception as error:  # noqa: BLE001  whatever a decoder raises for a bad file, the file is listed and the run continues
        return reject_of(error), []


def _companion(called: str, root: str, source: Source) -> tuple[str, bytes]:
    """Return what to call a companion of an input, and the bytes of its file."""
    called = f"{called} ({source.name})"
    try:
        return called, read_source(root, source)
    except Exception as error:  # noqa: BLE001  as in `_try`
        reason, detail = reject_of(error)
        raise CodecError(f"its {called}: {detail}", reason) from None


def kept(table: dict[str, Any]) -> int:
    """Return how many images a shard has."""
    return len(table["rows"])


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Build samples.npy, with a row for each image, and the store's other tables."""
    variants = plan.options.variants()
    counts, blocks = list[int](), list[Array]()
    originals, classes, noted = [0] * len(variants), Counter[int](), Counter[str]()
    for shard, table in enumerate(found):
        blocks.append(_rows(plan, shard, table["rows"]))
        counts.append(kept(table))
        originals = [count + more for count, more in zip(originals, table["originals"], strict=True)]
        classes.update({int(k): count for k, count in table["classes"].items()})
        noted.update(table["counts"])
    samples = np.concatenate(blocks)
    mask = plan.options.mask
    return Tables(
        samples=samples,
        names=_names(plan, samples["source"], counts),
        counts=tuple(counts),
        originals={name: originals[k] for k, (name, _, form) in enumerate(variants) if form.codec == "original"},
        sections={"masks": None if mask is None else Masks(mask.names, {str(k): classes[k] for k in sorted(classes)})},
        images=tuple(image.name for image in plan.options.images),
        notes=(*_notes(plan, noted), *_class_notes(plan, classes)),
    )


def _names(plan: Plan, places: Array, counts: Sequence[int]) -> Iterator[str]:
    """Yield the name of each image, by the places of all in the plan."""
    for shard, end in enumerate(accumulate(counts)):
        sources, first = plan.shard(shard), plan.bounds[shard]
        yield from (sources[place - first].name for place in places[end - counts[shard] : end].tolist())


def _rows(plan: Plan, shard: int, rows: list[Any]) -> Array:
    """Return the rows of samples.npy for a shard."""
    variants = [name for name, _, _ in plan.options.variants()]
    samples = np.zeros(len(rows), samples_dtype(plan.labels, variants))
    samples["source"] = [row[0] for row in rows]
    label = samples["label"]
    sources, first = plan.shard(shard), plan.bounds[shard]
    label[...] = np.array([sources[row[0] - first].label for row in rows], label.dtype).reshape(label.shape)
    for k, name in enumerate(variants):
        for j, side in enumerate(("height", "width")):
            if f"{name}/{side}" in samples.dtype.fields:
                samples[f"{name}/{side}"] = [row[1][k][j] for row in rows]
    return samples


def _class_notes(plan: Plan, classes: Counter[int]) -> Iterator[str]:
    """Yield the classes of the masks, with their shares of all pixels."""
    mask, total = plan.options.mask, classes.total()
    if mask is not None and total:
        names = dict(enumerate(mask.names))
        shares = [f"{names.get(k, k)} {classes[k] / total:.1%}" for k in sorted(classes)]
        yield f"classes of the masks, by their pixels: {listed(shares)}"
        if mask.binary:
            yield "masks have two classes: where a file has 0 and 255, 255 is class 1"


def _notes(plan: Plan, counts: Counter[str]) -> Iterator[str]:
    """Yield what became of boxes, and a note for each column some of whose texts were longer than a row of tokens."""
    yield from box_notes(counts)
    for column in plan.columns:
        if column.tokens is not None and (count := counts[f"cut {column.name}"]):
            yield f"{number_of(count, 'text')} of {column.name} {was(count)} cut to {column.shape[0]} tokens"
