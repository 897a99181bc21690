"""Open the images of a store: which of them a dataset emits."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastdata.images.records import StoreImages

__all__ = ["open_images"]


def open_images(
    path: str | os.PathLike[str],
    size: int | None,
    chosen: str | Sequence[str] | None,
    expected: str | None = None,
    check: str | None = "first",
) -> tuple[list[StoreImages], tuple[str, ...]]:
    """Open the images of each sample of a store, and return them with their names, which are () for one image.

    Args:
        path: the store.
        size: the stored size; None: the largest.
        chosen: the name of one image, which is emitted alone, or several; None: all.
        expected: as for Store.
        check: as for LMDBDataset.

    Raises:
        StoreError: the store lacks an image, or the size.
        ValueError: no image is chosen, or one twice.
    """
    if isinstance(chosen, str):
        return [StoreImages(path, size, image=chosen, expected=expected, check=check)], ()
    opened = StoreImages(path, size, expected=expected, check=check)
    names = opened.store.manifest.images if chosen is None else tuple(chosen)
    if chosen is None and not names:
        return [opened], ()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"images is {chosen!r}, but must be the name of an image, or different names, such as ('left', 'right')")
    return [opened.like(size, image=name) for name in names], names
