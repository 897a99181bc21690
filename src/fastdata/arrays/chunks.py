"""Chunks: the grid of boxes that an array is stored in, and which of them a crop touches.

Shapes here are of the axes that are cut: a leading axis of channels is not, and each chunk holds all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MAX_AXES", "Box", "Touched", "boxes", "count", "touched"]

MAX_AXES = 5  # that are cut
Shape = tuple[int, ...]
Box = tuple[slice, ...]


class Touched(NamedTuple):
    """A chunk that a crop touches: its place among the array's chunks, its shape, what of it is wanted, and where that goes."""

    place: int
    shape: Shape
    wanted: Box
    target: Box


def count(shape: Shape, chunk: Shape) -> int:
    """How many chunks an array has."""
    return math.prod(-(-side // step) for side, step in zip(shape, chunk, strict=True))


def boxes(shape: Shape, chunk: Shape) -> Iterator[Box]:
    """The chunks as boxes, in C order; those at the far ends are as small as what is left."""
    axes = ([slice(k, min(k + step, side)) for k in range(0, side, step)] for side, step in zip(shape, chunk, strict=True))
    return itertools.product(*axes)


def touched(shape: Shape, chunk: Shape, start: Shape, stop: Shape) -> Iterator[Touched]:
    """The chunks that a box from `start` to `stop` touches; it lies inside of the array. Targets count from `start`."""
    axes, stride = list[list[tuple[int, int, slice, slice]]](), 1
    for side, step, low, high in reversed(list(zip(shape, chunk, start, stop, strict=True))):
        parts = []
        for k in range(low // step, -(-high // step)) if low < high else ():
            first, length = k * step, min(step, side - k * step)
            a, b = max(low, first), min(high, first + length)
            parts.append((k * stride, length, slice(a - first, b - first), slice(a - low, b - low)))
        axes.append(parts)
        stride *= -(-side // step)
    for part in itertools.product(*reversed(axes)):
        places, lengths, wanted, target = zip(*part, strict=True)
        yield Touched(sum(places), lengths, wanted, target)
