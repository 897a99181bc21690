"""Contact sheets: the contents of a store of any kind on one PNG."""

from __future__ import annotations

import os

from fastdata.store.canvas import GAP, GREY
from fastdata.store.store import Store

__all__ = ["draw_sheet"]


def draw_sheet(path: str | os.PathLike[str], out: str | os.PathLike[str], *, size: int | None = None) -> int:
    """Draw a sheet of samples that are evenly spaced over a store, under its name.

    Images and arrays: 48 samples with class or labels, name and number; with masks, 24 and a legend; fewer with several images a
    sample, which are side by side. Volumes show their middle slice. Tokens: the beginnings of 24 documents.

    Args:
        path: the store.
        out: the PNG to write.
        size: the stored size of images; None: the largest.

    Returns:
        The number of samples shown.
    """
    store = Store(path, kind=None)
    if size is not None:
        store.variant(size)  # raises if there is no such size
    canvas, count, subtitle = store.kind.sheet(store, size)
    canvas.text(GAP, 26, store.path.name, width=canvas.pixels.shape[1] - 2 * GAP, size=19, bold=True)
    canvas.text(GAP, 46, subtitle, width=canvas.pixels.shape[1] - 2 * GAP, color=GREY)
    canvas.save(out)
    return count
