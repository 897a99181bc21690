"""What all formats of annotations share: their fields, and images that have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from fastdata.errors import PrepError
from fastdata.sources.inputs import FieldSource, Source, SourceList
from fastdata.sources.instances import instance_column
from fastdata.sources.packed import Packed
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.store.manifest import Labels

__all__ = ["BOXES", "annotated", "category_column", "finished", "keypoint_column"]

BOXES = instance_column("boxes", "xyxy")


def category_column(names: Sequence[str], ids: Sequence[int] = ()) -> Column:
    """Return the column of the categories of boxes, which are indices into `names`."""
    return Column("category", "int64", many=True, group=INSTANCES, names=tuple(names), ids=tuple(ids))


def keypoint_column(count: int, names: Sequence[str]) -> Column:
    """Return the column of keypoints (x, y, visibility): so many for each instance."""
    return structs.replace(instance_column("keypoints", "xy", (count,)), names=tuple(names))


def annotated(source: Source, values: Sequence[Any], problem: str = "") -> Source:
    """Return the source with the values of its annotations, and without a label, which it does not need then."""
    own = "" if source.problem == "no-label" else source.problem
    return replace(source, label=-1, problem=own or problem, values=(*source.values, *values))


def finished(
    inputs: SourceList, option: str, fields: Sequence[FieldSource], sources: Packed[Source], notes: Sequence[str]
) -> SourceList:
    """Return the list of annotated inputs.

    Args:
        inputs: the list without annotations.
        option: as typed, for messages.
        fields, notes: what the annotations add.
        sources: all inputs, with values.

    Raises:
        PrepError: the samples have a column of the same name.
    """
    twice = {column.name for column in inputs.columns} & {field.column.name for field in fields}
    if SOURCE_SIZE.name in twice:
        raise PrepError(f"--fields: {option} gives boxes or keypoints already; leave out those of --fields")
    if twice:
        raise PrepError(f"--fields {min(twice)}: {option} gives a column of this name; rename it in the table")
    return replace(
        inputs,
        labels=Labels("none"),
        sources=sources,
        notes=(*inputs.notes, *notes),
        fields=(*inputs.fields, *fields),
        labelled_by="",
    )
