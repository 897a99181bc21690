"""Make shards of images in a worker, and the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.errors import CodecError, MachineError
from fastdata.images.prepare import ImageRecipe, Record, Room, prepare_image
from fastdata.images.sections import Masks, rows_dtype
from fastdata.images.tokens import encode_columns
from fastdata.kinds import Tables
from fastdata.prepare.plan import Plan, PrepareRun
from fastdata.prepare.worker import ProgressReport, ShardTask, Writers, reject_of
from fastdata.sources.base import read_source
from fastdata.sources.fields import box_notes, field_files, in_pixels, read_fields
from fastdata.sources.inputs import Source, detail_of, listed, reason_of
from fastdata.sources.urls import AnyPath, join, read_ahead, to_path
from fastdata.system.machine import room
from fastdata.tokenizer import unknown_note
from fastdata.types import Array
from fastdata.words import number_of, was

PLAN_TYPES = ImageRecipe, (Source,)
SCRATCH_BYTES = 1 << 26


@cache
def _scratch() -> Array:
    """Return the memory that a worker decodes every image into."""
    cv2.setNumThreads(1)
    return decode_buffer(SCRATCH_BYTES)


def make_shard(job: PrepareRun, task: ShardTask, writers: Writers, progress: ProgressReport) -> dict[str, Any]:
    """Prepare the images of a task in every size."""
    rows, rejects = list[list[Any]](), list[dict[str, Any]]()
    classes, counts, originals = Counter[int](), Counter[str](), np.zeros(len(job.plan.options.variants()), int)
    for position, source in enumerate(_with_files(job, task, progress)):
        progress.at(position)
        own = Counter[str]()
        try:
            records, values = _prepared(job, source, task.skip.get(position), own, partial(_room, job, source, progress, position))
        except Exception as error:  # noqa: BLE001  whatever a decoder raises for a bad file, it is listed and the run continues
            reason, detail = reject_of(error)
            rejects.append({"source": task.first + position, "name": source.name, "reason": reason, "detail": detail})
            progress.add(finished=1, rejected=1)
            continue
        writers.append([record.data for record in records], values)
        rows.append([task.first + position, [[record.height, record.width] for record in records]])
        classes.update(next((record.classes for record in records if record.classes), {}))
        counts.update(own)
        originals += [record.original for record in records]
        progress.add(finished=1)
    found = {"kept": len(rows), "rows": rows, "rejects": rejects}
    return {**found, "classes": classes, "originals": originals.tolist(), "counts": counts}


def _with_files(job: PrepareRun, task: ShardTask, progress: ProgressReport) -> Iterable[Source]:
    """Return the sources of a task in order. Sources in object storage are read ahead."""
    roots = [to_path(root) for root in job.plan.roots]
    if all(isinstance(root, Path) for root in roots) and not any("://" in source.name for source in task.sources):
        return task.sources
    endings = [field.ending for field in job.plan.fields if field.ending]

    def files(position: int, source: Source) -> Iterator[AnyPath]:
        if not source.problem and position not in task.skip:
            companions = zip(roots[1:], source.companions, strict=True)
            yield from (folder / companion.name for folder, companion in companions if not companion.locator)
            if not source.locator:
                yield from (join(roots[0], name) for name in (source.name, *field_files(source, endings)))

    return read_ahead((source, files(k, source), max(source.size, 0)) for k, source in enumerate(task.sources))


@contextmanager
def _room(job: PrepareRun, source: Source, progress: ProgressReport, position: int, need: int) -> Iterator[None]:
    """Wait until there is memory for an image. The timeout of decoders that hang does not run meanwhile."""
    try:
        with room(need, job.share, waiting=lambda: progress.at(-1)):
            progress.at(position)
            yield
    except MachineError as error:
        advice = "run again with fewer --workers or on a machine with more memory, or with --overwrite and a smaller --max-pixels"
        raise MachineError(f"{source.name}: {error}: {advice}, which rejects the image") from None


def _prepared(
    job: PrepareRun, source: Source, skip: tuple[str, str] | None, counts: Counter[str], room: Room
) -> tuple[list[Record], list[Any]]:
    """Return a source's records and values. Raise CodecError, or whatever a decoder raises, if the source cannot be used.

    Details have no paths: a store is the same anywhere. `counts` counts what `_notes` reports.
    """
    if skip is not None:
        raise CodecError(skip[1], skip[0])
    if source.problem:
        raise CodecError(detail_of(source.problem), reason_of(source.problem))
    data, companions = read_source(job.plan.roots[0], source), list[tuple[str, bytes]]()
    names = [image.name for image in job.plan.options.images[1:]] + ["mask"] * (job.plan.options.mask is not None)
    for name, root, companion in zip(names, job.plan.roots[1:], source.companions, strict=True):
        called = f"{name} ({companion.name})"
        try:
            companions.append((called, read_source(root, companion)))
        except Exception as error:  # noqa: BLE001  as in `make_shard`
            reason, detail = reject_of(error)
            raise CodecError(f"its {called}: {detail}", reason) from None
    if job.plan.options.mask is not None:  # its records come first
        companions.insert(0, ("mask", companions.pop()[1]))
    if not source.locator and not any(field.ending for field in job.plan.fields):  # whose sizes are part of that of the source
        found = len(data) + sum(len(body) for _, body in companions)
        if found != source.size:
            raise CodecError(f"it has {found} bytes, but had {source.size} when it was listed", "changed")
    records = prepare_image(data, job.plan.options, scratch=_scratch(), companions=companions, room=room)
    values = in_pixels(job.plan.fields, read_fields(job.plan.roots[0], source, job.plan.fields), records[0].source, counts)
    return records, encode_columns(job.plan.columns, values, job.plan.files, counts)


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Build samples.npy, with a row for each image, and the store's other tables."""
    variants = plan.options.variants()
    samples = np.concatenate([_rows(plan, shard, table["rows"]) for shard, table in enumerate(found)])
    classes, noted = Counter[int](), Counter[str]()
    for table in found:
        classes.update({int(k): count for k, count in table["classes"].items()})
        noted.update(table["counts"])
    originals = np.sum([table["originals"] for table in found], axis=0, dtype=int).tolist()
    mask = plan.options.mask
    return Tables(
        samples=samples,
        names=_names(plan, found),
        originals={name: originals[k] for k, (name, _, form) in enumerate(variants) if form.codec == "original"},
        sections={"masks": None if mask is None else Masks(mask.names, {str(k): classes[k] for k in sorted(classes)})},
        images=tuple(image.name for image in plan.options.images),
        notes=tuple(_notes(plan, noted, classes)),
    )


def _names(plan: Plan, found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the name of each image."""
    for shard, table in enumerate(found):
        sources, first = plan.shard(shard), plan.bounds[shard]
        yield from (sources[position - first].name for position, _ in table["rows"])


def _rows(plan: Plan, shard: int, rows: list[Any]) -> Array:
    """Return the rows of samples.npy for a shard."""
    variants = [name for name, _, _ in plan.options.variants()]
    samples = np.zeros(len(rows), rows_dtype(plan.labels, variants))
    samples["source"] = [row[0] for row in rows]
    label, sources, first = samples["label"], plan.shard(shard), plan.bounds[shard]
    label[...] = np.array([sources[row[0] - first].label for row in rows], label.dtype).reshape(label.shape)
    for k, name in enumerate(variants):
        if f"{name}/height" in samples.dtype.fields:
            samples[f"{name}/height"], samples[f"{name}/width"] = np.array([row[1][k] for row in rows]).reshape(-1, 2).T
    return samples


def _notes(plan: Plan, counts: Counter[str], classes: Counter[int]) -> Iterator[str]:
    """Yield notes on boxes and texts that changed, and on the classes of the masks with their shares of all pixels."""
    yield from box_notes(counts)
    for column in plan.columns:
        if column.tokens is not None and (count := counts[f"cut {column.name}"]):
            yield f"{number_of(count, 'text')} of {column.name} {was(count)} cut to {column.shape[0]} tokens"
        if column.tokens is not None and (count := counts[f"unknown {column.name}"]):
            yield unknown_note(column.tokens.tokenizer.name, count / counts[f"tokens {column.name}"], f" of {column.name}")
    if plan.options.mask is not None and (total := classes.total()):
        names = dict(enumerate(plan.options.mask.names))
        shares = [f"{names.get(k, k)} {classes[k] / total:.1%}" for k in sorted(classes)]
        yield f"classes of the masks, by their pixels: {listed(shares)}"
        if plan.options.mask.binary:
            yield "masks have two classes: where a file has 0 and 255 (or 65535), the larger is class 1"
