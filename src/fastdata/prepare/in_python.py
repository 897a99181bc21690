"""SOURCE as a Python object, such as a DataFrame or a sequence of images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastdata import kinds

__all__ = ["as_path"]


@contextmanager
def as_path(source: Any, out: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the path of a source, and the labels that are not in it. An object becomes a temporary file.

    Raises:
        TypeError: no kind of data takes the source.
        ValueError: the source is an object and `out` is None, or the number of labels is not that of the samples.
    """
    if isinstance(source, str | os.PathLike):
        yield source, labels
        return
    for name in reversed(kinds.names()):
        kind = kinds.find(name)
        if (file := kind.adopt(source, labels)) is None:
            continue
        if out is None:
            raise ValueError(
                f"out is None, but {kind.adopts} has no name to derive it from: name the store, such as out='data.fds'"
            )
        with file as path_and_labels:
            yield path_and_labels
        return
    taken = filter(None, (kinds.find(name).adopts for name in reversed(kinds.names())))
    raise TypeError(f"source is a {type(source).__name__}, but must be a path, {', or '.join(taken)}")
