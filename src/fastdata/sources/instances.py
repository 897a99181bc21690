"""Boxes and keypoints, however they are given: in pixels of the upright file, x1, y1, x2, y2, clipped to the image."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from fastdata.errors import CodecError
from fastdata.sources.inputs import Field, Source, SourceList, read_bytes
from fastdata.store.columns import INSTANCES, SOURCE_SIZE, TEXTS, Column
from fastdata.store.manifest import Labels
from fastdata.types import Array
from fastdata.words import number_of, was

LAYOUTS = ("xyxy", "xywh", "cxcywh", "xy")  # x1, y1, x2, y2; x1, y1, width, height; the same from the centre; x, y, visibility
MEANINGS = "columns.json"  # of exports: the names of categories and keypoints
VISIBLE = 2.0  # of a keypoint, as in COCO: labelled and visible
ROUNDING_PX, ROUNDING = 0.01, 1e-5  # what a box may reach outside: of two digits of pixels, or of five of the image's sides


def instance_column(name: str, layout: str, shape: tuple[int, ...] = (), names: Iterable[str] = ()) -> Column:
    """Return the column of boxes, or of keypoints: those of an instance are (x, y, visibility), or `shape` of these."""
    geometry, shape = ("xy", (*shape, 3)) if layout == "xy" else ("xyxy", (4,))
    return Column(name, "float32", shape, many=True, geometry=geometry, group=INSTANCES, names=tuple(names))


def annotated(source: Source, values: Iterable[Any], problem: str = "") -> Source:
    """Return the source with the values of its annotations, and without a label, which it does not need then."""
    own = "" if source.problem == "no-label" else source.problem
    return replace(source, label=-1, problem=own or problem, values=(*source.values, *values))


def with_annotations(inputs: SourceList, fields: Iterable[Field], sources: Sequence[Source], notes: Iterable[str]) -> SourceList:
    """Return the list of annotated inputs. fields, notes: what the annotations add."""
    fields, notes = (*inputs.fields, *fields), (*inputs.notes, *notes)
    return replace(inputs, labels=Labels("none"), labelled_by="", sources=sources, fields=fields, notes=notes)


def as_instances(column: Column, value: Any) -> Array:
    """Return a sample's boxes, float64 [n, 4], or its keypoints with their visibility, [n, ..., 3], in the layout as given.

    A single box, or the keypoints of one instance, may lack the outer list. Those of an instance may be one list of numbers. Raise
    ValueError if they are something else.
    """
    try:
        array = np.array(value)
    except ValueError:
        array = np.array(None)
    if array.size and array.dtype.kind not in "iuf":
        raise ValueError(f"{value!r:.60} is not a list of as many numbers for each instance")
    array, each = array.astype(np.float64), column.shape
    if not np.isfinite(array).all():
        raise ValueError(f"{value!r:.60} has numbers that are not finite")
    if not array.size:
        return np.empty((0, *each))
    for last in (4,) if column.geometry == "xyxy" else (2, 3):
        inner, flat = (*each[:-1], last), (int(np.prod(each[:-1])) * last,)
        if array.shape not in (inner, flat) and array.shape[1:] not in (inner, flat):
            continue
        found = array.reshape(-1, *inner)
        if last != 2:
            return found
        seen = np.where(found.any(axis=-1, keepdims=True), VISIBLE, 0.0)  # 0, 0 is where files put those that are not labelled
        return np.concatenate([found, seen], axis=-1)
    if column.geometry == "xyxy":
        raise ValueError(f"an array of {list(array.shape)}, but boxes are lists of 4 numbers")
    raise ValueError(
        f"an array of {list(array.shape)}, but {column.name} has {number_of(int(np.prod(each[:-1])), 'keypoint')} of x, y or x, y, "
        f"visibility for each instance: give their number, such as {column.name}:xy[17]"
    )


def with_meanings(inputs: SourceList) -> SourceList:
    """Return the inputs with what whole numbers, and keypoints, stand for, if the file that an export writes lies there."""
    try:
        known = json.loads(read_bytes(inputs.root / MEANINGS)) if inputs.fields else {}
    except (OSError, ValueError, RecursionError):
        return inputs

    def named(field: Field) -> Field:
        names, column = known.get(field.column.name) if isinstance(known, dict) else None, field.column
        if column.names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return field
        fits = column.shape[:1] == (len(names),) if column.shape[1:] else column.dtype.kind in "iu" and column.type not in TEXTS
        return replace(field, column=structs.replace(column, names=tuple(names))) if fits else field

    return replace(inputs, fields=tuple(map(named, inputs.fields)))


def in_pixels(fields: Sequence[Field], values: Sequence[Any], size: tuple[int, int], counts: Counter[str]) -> list[Any]:
    """Return the values of an image with boxes and keypoints in pixels of the upright file.

    Boxes are clipped to the image. Instances whose boxes have no area inside of it are dropped from all columns of their group.
    Raise CodecError if lists of the instances differ in length, or the image has another size.

    Args:
        values: one for each field; of SOURCE_SIZE, the (height, width) that the annotations are about, or None.
        size: (height, width) of the upright file.
        counts: counts the boxes that are "clipped" and "dropped".
    """
    lengths = {one.column.name: len(value) for one, value in zip(fields, values, strict=True) if one.column.group == INSTANCES}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise CodecError(
            f"lists next to boxes or keypoints differ in length: {said}; lists of something else are json", "bad-field"
        )
    height, width = size
    sides, remain, out = np.array((width, height) * 2), np.ones(next(iter(lengths.values()), 0), bool), list(values)
    for k, field in enumerate(fields):
        if field.column == SOURCE_SIZE:
            if values[k] is not None and tuple(values[k]) != size:
                was_height, was_width = values[k]
                raise CodecError(
                    f"its annotations are of {was_width} x {was_height} pixels, but upright it has {width} x {height}",
                    "annotated-size",
                )
            out[k] = size
        elif field.layout == "xy":
            out[k] = values[k] * (width, height, 1) if field.fractions else values[k]
        elif field.layout:
            boxes = _as_corners(values[k], field.layout) * (sides if field.fractions else 1)
            out[k] = inside = np.clip(boxes, 0, sides)
            counts["clipped"] += int((abs(boxes - inside) > np.maximum(ROUNDING_PX, ROUNDING * sides)).any(axis=1).sum())
            remain &= (inside[:, 2:] > inside[:, :2]).all(axis=1)
    if not remain.all():
        counts["dropped"] += int((~remain).sum())
        for k, field in enumerate(fields):
            if field.column.group == INSTANCES:
                out[k] = [one for one, stays in zip(out[k], remain, strict=True) if stays]
    return out


def _as_corners(boxes: Array, layout: str) -> Array:
    """Return boxes as x1, y1, x2, y2."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if layout == "xywh":
        second = first + second
    elif layout == "cxcywh":
        first, second = first - second / 2, first + second / 2
    return np.concatenate([first, second], axis=1)


def box_notes(counts: Counter[str]) -> Iterator[str]:
    """Yield what became of the boxes that were counted."""
    if count := counts["clipped"]:
        yield f"{number_of(count, 'box')} reached outside of the image and {was(count)} clipped"
    if count := counts["dropped"]:
        yield f"{number_of(count, 'box')} without area inside of the image {was(count)} dropped"
