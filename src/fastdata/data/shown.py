"""The parts of a dataset's repr."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata.store.store import Place

__all__ = ["counted_of", "in_one_line", "shown"]


def in_one_line(dataset: Any, *parts: str) -> str:
    """Return the repr of a dataset with the parts that are not empty."""
    return f"{type(dataset).__name__}({', '.join(part for part in parts if part)})"


def counted_of(count: int, whole: int, what: str) -> str:
    """Return "1,000 images", or "800 of 1,000 images" for a subset."""
    return f"{count:,} {what}" if count == whole else f"{count:,} of {whole:,} {what}"


def shown(path: Path | Place) -> str:
    """Return a path relative to the working folder if it lies inside, or a URL."""
    if isinstance(path, Place):
        return str(path)
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return os.fspath(path)
    return os.fspath(path.relative_to(here) if path.is_relative_to(here) and path != here else path)
