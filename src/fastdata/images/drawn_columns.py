"""Boxes, keypoints and captions on a contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from fastdata.images.export_columns import ExportColumns
from fastdata.store.canvas import class_colors
from fastdata.store.column import Column
from fastdata.store.columns import ColumnReader
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["Boxes", "Described", "box_categories", "box_colors", "box_legend", "category_numbers"]

Array = np.ndarray[Any, np.dtype[Any]]

FINE = 100  # a line is one pixel wide in an image of this side
CAPTIONS = "captions"


class Boxes:
    """Draws the boxes and keypoints of a store's images.

    Args:
        store: a store of images.
        variant: what is drawn on.
    """

    def __init__(self, store: Store, variant: Variant) -> None:
        geometric = [column for column in store.manifest.columns if column.geometry]
        self._rows = ExportColumns(store, variant) if geometric else None
        self._boxes = [column for column in geometric if column.geometry == "xyxy"]
        self._points = [column for column in geometric if column.geometry == "xy"]
        self._categories = box_categories(store)

    def drawn(self, pixels: Array, index: int) -> Array:
        """Return an image, uint8 [H, W, 3], with its boxes and keypoints."""
        if self._rows is None:
            return pixels
        values = {name: found[0] for name, found in self._rows.take(np.array([index])).items()}
        out = np.ascontiguousarray(pixels).copy()
        width = max(1, round(max(out.shape[:2]) / FINE))
        for column in self._boxes:
            colors = box_colors(category_numbers(self._categories, column, values))
            for box, color in zip(values[column.name].reshape(-1, 4).round().astype(int), colors, strict=False):
                cv2.rectangle(out, box[:2].tolist(), box[2:].tolist(), color, width)
        for column in self._points:
            for x, y, visible in values[column.name].reshape(-1, 3).tolist():
                if visible:
                    cv2.circle(out, (round(x), round(y)), 2 * width, (255, 255, 255), -1)
        return out


class Described:
    """The text that belongs to each image.

    Attributes:
        text: the column that it is in: the first of text, or captions; None: there is none.
    """

    def __init__(self, store: Store) -> None:
        columns = store.manifest.columns
        named = [column for column in columns if column.type == "text"]
        self.text: Column | None = next(iter(named), next((c for c in columns if (c.name, c.type) == (CAPTIONS, "json")), None))
        self._reader = None if self.text is None else ColumnReader(store.path, self.text, len(store))

    def line(self, index: int) -> str:
        """Return the text of an image, or the first of several, in one line."""
        if self._reader is None:
            return ""
        (found,) = self._reader.objects(np.array([index]))
        first = next(iter(found), "") if isinstance(found, list) else found
        return " ".join(str(first).split())


def box_legend(store: Store, most: int) -> Sequence[tuple[tuple[int, int, int], str]]:
    """Return the colours of the commonest categories of boxes, with their names and counts, in their order."""
    column = box_categories(store)
    if column is None or not column.names:
        return []
    numbers = ColumnReader(store.path, column, len(store)).take(np.arange(len(store)))
    counts = np.bincount(numbers, minlength=len(column.names))
    common = sorted(np.argsort(-counts, kind="stable")[:most].tolist())
    return [(color, f"{column.names[k]} {counts[k]}") for k, color in zip(common, box_colors(common), strict=True) if counts[k]]


def box_categories(store: Store) -> Column | None:
    """Return the column of whole numbers with names that boxes share their instances with."""
    groups = {column.group for column in store.manifest.columns if column.geometry == "xyxy"}
    fitting = (c for c in store.manifest.columns if c.group in groups and c.many and not c.shape and c.type == "int64")
    return next((column for column in fitting if column.group is not None), None)


def category_numbers(categories: Column | None, boxes: Column, values: Mapping[str, Array]) -> Array:
    """Return the category of each box of a column, from the values of all columns; 0 for boxes without categories."""
    if categories is not None and categories.group == boxes.group:
        return values[categories.name]
    return np.zeros(len(values[boxes.name]), np.int64)


def box_colors(numbers: Sequence[int] | Array) -> list[tuple[int, int, int]]:
    """Return bright colours."""
    colors = class_colors(256)
    return [tuple(colors[1 + int(number) % 253].tolist()) for number in numbers]
