"""Several views of an image: which of them are cut out of one decoded part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastdata.codecs.pixels import Window
from fastdata.images.view import Sample

__all__ = ["Part", "shared_parts"]

# A window joins a part if decoding the part with it costs less than decoding it alone: see benchmarks/LOG.md, "Views".
SHARE = 1.0  # of the window's pixels
START = 16_000  # pixels that could be decoded in the time that each decode takes to start


class Part(NamedTuple):
    """A part of the image at a place of the batch, and the views whose windows lie in it."""

    place: int
    window: Window
    views: tuple[int, ...]


def shared_parts(plans: Sequence[Sequence[Sample]], *, cuts: bool) -> list[Part]:
    """Return the parts of a batch's images to decode. They contain the windows of all samples.

    Windows are joined only if they are decoded at the same scale, so that no pixel depends on what is shared.

    Args:
        plans: for each view, the samples of the batch.
        cuts: whether a part of an image is decoded without the rest. If not, its windows are always joined.
    """
    return [
        Part(place, window, tuple(views))
        for place, samples in enumerate(zip(*plans, strict=True))
        for window, views in _joined([sample.window for sample in samples], cuts)
    ]


def _joined(windows: Sequence[Window], cuts: bool) -> list[tuple[Window, list[int]]]:
    """Join the windows of one image, the largest first, where that saves time."""
    parts: list[tuple[Window, list[int]]] = []
    for view in sorted(range(len(windows)), key=lambda view: -_area(windows[view])):
        window = windows[view]
        for number, (part, views) in enumerate(parts):
            union = _union(part, window)
            fits = part[4:] == window[4:] and part.empty == window.empty
            if fits and (not cuts or _area(union) - _area(part) <= SHARE * _area(window) + START):
                parts[number] = union, [*views, view]
                break
        else:
            parts.append((window, [view]))
    return parts


def _area(window: Window) -> int:
    return window.height * window.width


def _union(one: Window, other: Window) -> Window:
    """Return the smallest window that contains both, at the scale of the first."""
    top, left = min(one.top, other.top), min(one.left, other.left)
    bottom = max(one.top + one.height, other.top + other.height)
    right = max(one.left + one.width, other.left + other.width)
    return one._replace(top=top, left=left, height=bottom - top, width=right - left)
