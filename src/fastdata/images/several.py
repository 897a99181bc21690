"""Samples of several images: which of them a dataset emits, and where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastdata.images.concat import ConcatImages
from fastdata.images.records import Images, StoreImages
from fastdata.shared_memory import SharedArray

__all__ = ["Several", "open_images"]


@dataclass(frozen=True)
class Several:
    """The images of each sample.

    Attributes:
        names: of the images, if a sample is a dict of them, in its order; empty: it is one image.
        others: all images but the first, which are the dataset's own. They have the same sizes.
    """

    names: tuple[str, ...] = ()
    others: tuple[Images, ...] = ()

    @classmethod
    def concat(cls, parts: Sequence[tuple[Several, SharedArray | None]]) -> Several:
        """Concatenate those of several datasets with the same names, each with the rows of it to use; None: all rows."""
        first = parts[0][0]
        return replace(
            first,
            others=tuple(ConcatImages([(some.others[k], rows) for some, rows in parts]) for k in range(len(first.others))),
        )

    def with_size(self, size: int | None) -> Several:
        return replace(self, others=tuple(images.with_size(size) for images in self.others))


def open_images(
    path: str | os.PathLike[str],
    size: int | None,
    chosen: str | Sequence[str] | None,
    expected: str | None = None,
    check: str | None = "first",
) -> tuple[StoreImages, Several]:
    """Open the images of a store: the first, and the others of each sample.

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
        return StoreImages(path, size, image=chosen, expected=expected, check=check), Several()
    opened = StoreImages(path, size, expected=expected, check=check)
    names = opened.store.manifest.images if chosen is None else tuple(chosen)
    if chosen is None and not names:
        return opened, Several()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"images is {chosen!r}, but must be the name of an image, or different names, such as ('left', 'right')")
    first, *others = (opened.like(size, image=name) for name in names)
    return first, Several(names, tuple(others))
