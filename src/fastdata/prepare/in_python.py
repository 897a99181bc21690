"""SOURCE as something in Python, such as a DataFrame or a sequence of images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastdata import kinds

__all__ = ["as_path"]


@contextmanager
def as_path(source: Any, out: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Give a path, and the labels that are not in it: a path as it is; anything else as a file that is gone afterwards.

    Raises:
        TypeError: source is nothing that a kind of data takes.
        ValueError: it has no name, and out is None; or labels are not one for each sample.
    """
    if isinstance(source, str | os.PathLike):
        yield source, labels
        return
    for name in reversed(kinds.names()):
        kind = kinds.find(name)
        if (file := kind.adopt(source, labels)) is None:
            continue
        if out is None:
            raise ValueError(f"out is None, but {kind.adopts} has no name to make one of: give the store's, such as out='data.fds'")
        with file as path_and_labels:
            yield path_and_labels
        return
    taken = [kinds.find(name).adopts for name in kinds.names()]
    raise TypeError(
        f"source is a {type(source).__name__}, but must be a path, {', or '.join(reversed([what for what in taken if what]))}"
    )
