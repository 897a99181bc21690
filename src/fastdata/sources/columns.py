"""Which columns of a table hold the images, or their paths, and which the labels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastdata.errors import PrepError
from fastdata.sources.options import NO_LABELS

__all__ = ["INDEX", "LABELS", "PATHS", "choose_label", "find_column"]

PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "fine_label", "class", "class_name", "category", "cls", "target")
INDEX = re.compile(r"(Unnamed: .*|__index_level_\d+__)?")  # the columns that pandas writes for the index of a DataFrame


def find_column(columns: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the index of the first column with one of these names, in any case."""
    lower = [str(column).lower() for column in columns]
    return next((lower.index(name) for name in names if name in lower), None)


def choose_label(columns: Sequence[str], wanted: str, where: object, likely: Sequence[str] = ()) -> str:
    """Return the column of labels: the one that the caller names, a usual one, or the only likely one; "": there is none."""
    if wanted not in ("", NO_LABELS, *columns):
        raise PrepError(f"--label-column {wanted}: {where} has no such column; it has {', '.join(map(str, columns))}")
    if wanted:
        return wanted if wanted in columns else ""
    usual = find_column(columns, LABELS)
    found = likely if usual is None else [columns[usual]]
    return found[0] if len(found) == 1 else ""
