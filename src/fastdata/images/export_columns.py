"""The columns of a store as they belong to its exported images: boxes and keypoints are in pixels of these."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import warn_user
from fastdata.images.geometry import Placement, move_boxes, move_keypoints, placement
from fastdata.store.column import INSTANCES, SOURCE_SIZE, TEXTS, Column
from fastdata.store.columns import ColumnReader
from fastdata.store.format import Variant
from fastdata.store.store import Store
from fastdata.words import number_of

__all__ = ["COLUMN_NAMES", "ExportColumns", "as_json", "warn_left_out", "write_meanings"]

COLUMN_NAMES = "columns.json"  # what whole numbers in columns stand for, next to the exported files
AREA = "area"  # of the column with the areas of instances
CHUNK = 1024  # samples that are read at once

Array = np.ndarray[Any, np.dtype[Any]]


class ExportColumns:
    """Iterates over a store's samples; an item has the value of each column, by name.

    Values are arrays (of lists [length, *shape]), text, bytes or objects of JSON. Areas of instances are scaled with the image, and
    where a box is cut off, by its remaining share too. Instances whose boxes are cut off entirely are left out.

    Args:
        store: a store of images.
        variant: what is exported.

    Attributes:
        store: the same.
        columns: all but `source_size`, because coordinates are in pixels of the exported images.
        left: how many instances were left out so far.
    """

    def __init__(self, store: Store, variant: Variant) -> None:
        self.store = store
        self._variant = variant
        self._readers = {column.name: ColumnReader(store.path, column, len(store)) for column in store.manifest.columns}
        self.columns = tuple(column for column in store.manifest.columns if column != SOURCE_SIZE)
        self.left = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.store), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(self.store)))
            found = self.take(rows)
            for place in range(len(rows)):
                yield {name: values[place] for name, values in found.items()}

    def take(self, rows: Array) -> dict[str, Any]:
        """Return the values of each column for these samples, int64 [n]: a sequence of n values, by the column's name."""
        objects, values, of = dict[str, list[Any]](), dict[str, Array](), dict[str, Array]()
        for column in self.columns:
            reader = self._readers[column.name]
            if column.type in TEXTS:
                objects[column.name] = reader.objects(rows)
            else:
                values[column.name] = reader.take(rows)
                lengths = reader.lengths(rows) if column.many else np.ones(len(rows), np.int64)
                of[column.name] = np.repeat(np.arange(len(rows)), lengths)
        keep = self._move(values, of, rows) if SOURCE_SIZE.name in self._readers else {}
        found = dict[str, Any]()
        for column in self.columns:
            name = column.name
            if name in objects:
                found[name] = objects[name]
            elif column.many:
                kept = keep.get(column.group, slice(None))
                ends = np.searchsorted(of[name][kept], np.arange(1, len(rows)))
                found[name] = np.split(values[name][kept], ends)
            else:
                found[name] = values[name]
        return found

    def _move(self, values: dict[str, Array], of: dict[str, Array], rows: Array) -> dict[str | None, Array]:
        """Move boxes, keypoints and areas to the exported images. Return which items of each group remain."""
        placed, sizes = self._placement(rows)
        keep = dict[str | None, Array]()
        share = dict[str | None, Array]()
        for column in self.columns:
            name = column.name
            if column.geometry == "xyxy":
                moved, remains = move_boxes(values[name], of[name], placed, sizes, 0.0)
                whole = _areas(values[name]) * placed.scale[of[name]].prod(axis=1)
                share[column.group] = np.minimum(1, _areas(moved) / np.where(remains, whole, 1))
                values[name] = moved
                if column.group is not None:
                    keep[column.group] = remains
                    self.left += int((~remains).sum())
            elif column.geometry == "xy":
                values[name] = move_keypoints(values[name], of[name], placed, sizes, column.names)
        for column in self.columns:
            if (column.name, column.group) == (AREA, INSTANCES):
                scale = placed.scale[of[AREA]].prod(axis=1) * share.get(INSTANCES, 1)
                values[AREA] = (values[AREA] * scale).astype(column.dtype)
        return keep

    def _placement(self, rows: Array) -> tuple[Placement, Array]:
        """Return where points of the prepared files lie in the exported images, and the (width, height) of these."""
        options = self.store.manifest.options
        files = self._readers[SOURCE_SIZE.name].take(rows)
        placed, _ = placement(files, self._variant.size, options["resize"], upscale=options["upscale"])
        samples = self.store.samples[rows]
        return placed, np.stack(
            [samples[f"{self._variant.name}/{side}"].astype(np.float64) for side in ("width", "height")], axis=1
        )


def _areas(boxes: Array) -> Array:
    sides = boxes.astype(np.float64).reshape(-1, 2, 2)
    return np.asarray((sides[:, 1] - sides[:, 0]).prod(axis=1))


def as_json(value: Any) -> Any:
    """Return a value as JSON has it. Numbers that are not finite become null."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        objects = np.array(value, object)
        objects[~np.isfinite(value)] = None
        return objects.tolist()
    return value.tolist()


def warn_left_out(out: Path, columns: Sequence[Column], why: str, left: int) -> None:
    """Warn if columns, for the reason `why`, or instances are not in an export."""
    if columns:
        names = ", ".join(column.name for column in columns)
        warn_user(f"export to {out}: {why}: {names}; `columns` of a dataset of the store has their values")
    if left:
        lie = "lie outside of their images" if left > 1 else "lies outside of its image"
        gone = f"{number_of(left, 'box')} that {lie}, as --resize crop left {'these' if left > 1 else 'it'}"
        warn_user(f"export to {out}: left out {gone}, with the same instances in other columns")


def write_meanings(store: Store, root: Path, columns: Sequence[Column]) -> list[Path]:
    """Write what whole numbers stand for, if columns say so: an object with a list for each of these, and the tokenizers' files.

    Returns:
        The files.
    """
    written = []
    if names := {column.name: column.names for column in columns if column.names}:
        written.append(root / COLUMN_NAMES)
        written[0].write_text(json.dumps(names, indent=0) + "\n")
    for column in columns:
        if column.tokenizer_file:
            written.append(root / Path(column.tokenizer_file).name)
            shutil.copyfile(store.path / column.tokenizer_file, written[-1])
    return written
