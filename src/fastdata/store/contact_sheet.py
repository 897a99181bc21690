"""A contact sheet: what a store of any kind holds, on one PNG."""

from __future__ import annotations

import os

from fastdata.errors import StoreError
from fastdata.store.canvas import GAP, GREY
from fastdata.store.store import Store

__all__ = ["draw_sheet"]


def draw_sheet(path: str | os.PathLike[str], out: str | os.PathLike[str], *, size: int | None = None) -> int:
    """Draw what a store holds, evenly spaced over all of it, under its name.

    Of images and arrays 48 samples, with class or labels, name and number; of those with masks 24, and a legend. Of volumes, the
    slice in the middle. Of tokens, how 24 documents begin. Of a table, how the values of each column are distributed.

    Args:
        path: the store.
        out: the PNG to write.
        size: of images, which stored size; None: the largest.

    Returns:
        How many samples it shows; of a table, how many columns.
    """
    store = Store(path, kind=None)
    if size is not None:
        store.variant(size)  # says what there is, if not this
    drawn = store.kind.sheet(store, size)
    if drawn is None:
        raise StoreError(f"{path} holds {store.kind.says}, of which there is no contact sheet: leave --sheet out")
    canvas, count, said = drawn
    canvas.text(GAP, 26, store.path.name, width=canvas.pixels.shape[1] - 2 * GAP, size=19, bold=True)
    canvas.text(GAP, 46, said, width=canvas.pixels.shape[1] - 2 * GAP, color=GREY)
    canvas.save(out)
    return count
