"""The sections of a report on the columns of a store: boxes, categories, captions and other values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.images.drawn_columns import box_categories
from fastdata.report.charts import bars, histogram, many, number
from fastdata.report.html import Html, tag
from fastdata.report.page import Section
from fastdata.store.column import SOURCE_SIZE, TEXTS, Column
from fastdata.store.columns import ColumnReader
from fastdata.store.store import Store

__all__ = ["column_sections"]

Array = np.ndarray[Any, np.dtype[Any]]

ROWS = 20_000  # samples whose values are read, evenly spaced
CATEGORIES = 30


def column_sections(store: Store) -> Iterator[Section]:
    """Yield the section on the columns of a store, if it has any."""
    columns = [column for column in store.manifest.columns if column != SOURCE_SIZE]
    if not columns:
        return
    rows = np.arange(len(store)) if len(store) <= ROWS else np.arange(ROWS) * len(store) // ROWS
    cards, facts, findings = [], dict[str, Any](), []
    of = box_categories(store)
    for column in columns:
        reader = ColumnReader(store.path, column, len(store))
        charts, found = _column(column, reader, rows)
        facts[column.name] = found
        if column.geometry == "xyxy" and found["empty"]:
            findings.append(f"{many(found['empty'], 'image', 'has')} no {column.name}.")
        badge = tag("span", "categories of boxes", class_="badge") if of is not None and column.name == of.name else None
        cards.append(tag("div", tag("h3", column.name, badge), tag("p", str(column).partition(" ")[2], class_="facts"), charts))
    said = "Values that belong to each image" + (f"; of {number(ROWS)} images, evenly spaced." if len(rows) < len(store) else ".")
    body = [tag("p", said, class_="soft"), tag("div", cards, class_="cards")]
    yield Section("columns", "Columns", tag("div", body), facts, tuple(findings))


def _column(column: Column, reader: ColumnReader, rows: Array) -> tuple[list[Html], dict[str, Any]]:
    charts: list[Html] = []
    facts: dict[str, Any] = {"type": str(column), "samples": len(rows)}
    if column.ragged:
        lengths = reader.lengths(rows)
        facts |= {"empty": int((lengths == 0).sum()), "total": int(lengths.sum())}
        charts.append(histogram(lengths, "items of a sample" if column.many else "bytes of a value"))
    if column.type in TEXTS:
        return charts, facts
    values = reader.take(rows)
    if column.names and column.geometry is None and not column.shape:
        counts = np.bincount(values[(values >= 0) & (values < len(column.names))].astype(np.int64), minlength=len(column.names))
        order = np.argsort(-counts, kind="stable")
        facts["counts"] = {column.names[k]: int(counts[k]) for k in order.tolist()}
        shown = [(column.names[k], int(counts[k])) for k in order[:CATEGORIES].tolist()]
        more = f", the commonest {CATEGORIES} of {len(order)}" if len(order) > CATEGORIES else ""
        charts.append(bars(shown, what=f"count{more}", whole=int(counts.sum())))
    elif column.geometry == "xyxy":
        sides = values.reshape(-1, 4)
        charts.append(
            histogram(
                np.sqrt(np.maximum(0, sides[:, 2] - sides[:, 0]) * np.maximum(0, sides[:, 3] - sides[:, 1])),
                "size of a box: square root of its area, pixels of the file",
            )
        )
    elif column.geometry is None and len(values) and column.tokens is None:
        finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        charts.append(histogram(finite.ravel(), "values"))
        facts |= {"min": float(finite.min()), "max": float(finite.max())} if finite.size else {}
    return charts, facts
