"""The grid of chunks that an array is stored in, and the chunks that a crop touches.

Shapes here leave out the axis of channels: it is never cut, so each chunk holds all channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

__all__ = ["MAX_AXES", "Box", "boxes", "touched"]

MAX_AXES = 5  # without channels
Shape = tuple[int, ...]
Box = tuple[slice, ...]


def boxes(shape: Shape, chunk: Shape) -> Iterator[Box]:
    """Yield the chunks as boxes in C order. Those at the far ends are smaller."""
    axes = ([slice(k, min(k + step, side)) for k in range(0, side, step)] for side, step in zip(shape, chunk, strict=True))
    return itertools.product(*axes)


def touched(shape: Shape, chunk: Shape, start: Shape, stop: Shape) -> Iterator[tuple[int, Shape, Box, Box]]:
    """Yield the chunks that a box from `start` to `stop`, inside the array, touches.

    Each is (number among the array's chunks, shape, the part of it that is wanted, where that part goes, from `start`): plain
    tuples, since a crop has dozens.
    """
    axes: list[list[tuple[int, int, slice, slice]]] = []
    stride = 1
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
        yield sum(places), lengths, wanted, target
