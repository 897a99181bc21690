"""SOURCE as something in Python: a DataFrame, or a sequence of images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastdata.prepare.archives.given import as_pile, is_sequence
from fastdata.prepare.table.frame import as_file, is_frame

__all__ = ["as_path"]


@contextmanager
def as_path(source: Any, out: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """A path, and the labels that are not in it: a path as it is; a DataFrame or images in a file that is gone afterwards.

    Raises:
        TypeError: source is none of these.
        ValueError: it has no name, and out is None; or labels are not one for each image.
    """
    if isinstance(source, str | os.PathLike):
        yield source, labels
        return
    what = "a DataFrame" if is_frame(source) else "a sequence of images" if is_sequence(source) else ""
    if not what:
        raise TypeError(f"source is a {type(source).__name__}, but must be a path, a DataFrame, or a sequence of images")
    if out is None:
        raise ValueError(f"out is None, but {what} has no name to make one of: give the store's, such as out='data.fds'")
    if is_frame(source):
        with as_file(source) as path:
            yield path, labels
        return
    if isinstance(labels, str | os.PathLike):
        raise ValueError(f"labels is {labels}, but of images in Python it is a sequence, one label for each, or part of the items")
    with as_pile(source, labels) as path:
        yield path, None
