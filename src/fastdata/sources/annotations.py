"""What all formats of annotations share: their columns, boxes outside of the image, and images that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fastdata.errors import PrepError
from fastdata.sources.inputs import Source, SourceList
from fastdata.sources.packed import PackedInputs
from fastdata.store.column import INSTANCES, Column
from fastdata.store.format import Labels
from fastdata.words import number_of

__all__ = ["BOXES", "BoxCheck", "Checked", "annotated", "category_column", "finished", "keypoint_column", "was"]

BOXES = Column("boxes", "float32", (4,), many=True, geometry="xyxy", group=INSTANCES)


def category_column(names: Sequence[str], ids: Sequence[int] = ()) -> Column:
    """Return the column of the categories of boxes, which are indices into `names`."""
    return Column("category", "int64", many=True, group=INSTANCES, names=tuple(names), ids=tuple(ids))


def keypoint_column(count: int, names: Sequence[str]) -> Column:
    """Return the column of keypoints (x, y, visibility): so many for each instance."""
    return Column("keypoints", "float32", (count, 3), many=True, geometry="xy", group=INSTANCES, names=tuple(names))


class Checked(NamedTuple):
    """Boxes inside of their image: clipped, those with an area; their places among all; the image's problem, or ""."""

    boxes: list[list[float]]
    keep: list[int]
    problem: str


class BoxCheck:
    """Clips boxes to their images, and counts what that changes.

    Args:
        reject: an image with a box that reaches outside of it is a reject.
        tolerance: what counts as rounding, in the unit of the boxes.
    """

    def __init__(self, *, reject: bool, tolerance: float) -> None:
        self._reject = reject
        self._tolerance = tolerance
        self._clipped = self._dropped = 0

    def check(self, boxes: Sequence[Sequence[float]], width: float, height: float) -> Checked:
        """Clip the boxes (x1, y1, x2, y2) of an image."""
        limits = [float(width), float(height)] * 2
        inside = [[min(max(value, 0.0), end) for value, end in zip(box, limits, strict=True)] for box in boxes]
        moved = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in zip(boxes, inside, strict=True)]
        outside = sum(far > self._tolerance for far in moved)
        keep = [k for k, (x1, y1, x2, y2) in enumerate(inside) if x2 > x1 and y2 > y1]
        self._dropped += len(inside) - len(keep)
        self._clipped += 0 if self._reject else outside
        return Checked([inside[k] for k in keep], keep, "box-outside" if outside and self._reject else "")

    def notes(self) -> Iterator[str]:
        """Yield what became of the boxes."""
        if self._clipped:
            boxes = number_of(self._clipped, "box")
            yield f"{boxes} reached outside of the image and {was(self._clipped)} clipped; --bad-boxes reject rejects such images"
        if self._dropped:
            yield f"{number_of(self._dropped, 'box')} without area inside of the image {was(self._dropped)} dropped"


def was(count: int) -> str:
    """Return the verb for so many."""
    return "was" if count == 1 else "were"


def annotated(source: Source, values: Sequence[Any], problem: str = "") -> Source:
    """Return the source with the values of its annotations, and without a label, which it does not need then."""
    own = "" if source.problem == "no-label" else source.problem
    return replace(source, label=-1, problem=own or problem, values=(*source.values, *values))


def finished(
    inputs: SourceList, option: str, columns: Sequence[Column], sources: PackedInputs[Source], notes: Sequence[str]
) -> SourceList:
    """Return the list of annotated inputs.

    Args:
        inputs: the list without annotations.
        option: as typed, for messages.
        columns, notes: what the annotations add.
        sources: all inputs, with values.

    Raises:
        PrepError: a table gives a column of the same name.
    """
    if twice := {column.name for column in inputs.columns} & {column.name for column in columns}:
        raise PrepError(f"--fields {min(twice)}: {option} gives a column of this name; rename it in the table")
    return replace(
        inputs,
        labels=Labels("none"),
        sources=sources,
        notes=(*inputs.notes, *notes),
        columns=(*inputs.columns, *columns),
        labelled_by="",
    )
