"""The contact sheet of a table: a card for each column, with the distribution of its values."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.store.canvas import BLUE, GAP, GREY, LIGHT, ORANGE, PALE, TITLE, Canvas, text_width
from fastdata.store.store import Store
from fastdata.tables.columns import Column
from fastdata.tables.info import column_values
from fastdata.words import human_bytes, number_of

__all__ = ["draw_columns", "format_value", "sampled_values"]

Array = np.ndarray[Any, np.dtype[Any]]

WIDE = 300
TALL = 168
ACROSS = 4
MOST_COLUMNS = 48
MOST_ROWS = 100_000
BARS = 40
NAMES = 6


def draw_columns(store: Store) -> tuple[Canvas, int, str]:
    """Draw a card for each column, targets first, with room for a title. Return also their number and a line on the table."""
    table = store.manifest.section("table")
    order = sorted(table.columns, key=lambda column: column.name not in table.targets)[:MOST_COLUMNS]
    rows = max(1, -(-len(order) // ACROSS))
    canvas = Canvas(ACROSS * (WIDE + GAP) + GAP, TITLE + rows * (TALL + GAP))
    for place, column in enumerate(order):
        x, y = GAP + place % ACROSS * (WIDE + GAP), TITLE + place // ACROSS * (TALL + GAP)
        target = column.name in table.targets
        canvas.box(x, y, WIDE, TALL, PALE)
        canvas.text(x + 8, y + 18, column.name + (" (target)" if target else ""), width=WIDE - 16, bold=True)
        kind = column.kind if column.kind == column.type else f"{column.kind} ({column.type})"
        missing = f", {column.missing / max(1, len(store)):.1%} missing" if column.missing else ""
        canvas.text(x + 8, y + 34, f"{column.dtype}, {kind}{missing}", width=WIDE - 16, size=12, color=GREY)
        values, _ = sampled_values(store, column)
        color = ORANGE if target else BLUE
        if column.kind in ("category", "bool"):
            _names(canvas, x + 8, y + 44, values.astype(np.int64), column.names or ("false", "true"), color)
        elif len(values):
            _histogram(canvas, x + 8, y + 44, values, column, color)
    size = sum(shard.bytes for shard in store.manifest.variants[0].shards)
    summary = f"{number_of(len(store), 'row')}, {number_of(len(table.columns), 'column')}, {human_bytes(size)}"
    return canvas, len(order), summary + (f"; the first {len(order)}" if len(order) < len(table.columns) else "")


def sampled_values(store: Store, column: Column) -> tuple[Array, int]:
    """Return every n-th value of a column, without missing ones, and n."""
    step = -(-max(1, len(store)) // MOST_ROWS)
    values = column_values(store, column, step=step)
    if column.missing is not None:
        values = values[~column_values(store, column, mask=True, step=step)]
    return (values[np.isfinite(values)] if values.dtype.kind == "f" else values), step


def _histogram(canvas: Canvas, x: int, y: int, values: Array, column: Column, color: tuple[int, int, int]) -> None:
    numbers = values.astype(np.float64)
    low, high = float(numbers.min()), float(numbers.max())
    bars = min(BARS, int(high - low) + 1) if values.dtype.kind in "iu" and high - low < BARS else BARS
    counts, _ = np.histogram(numbers, bars, (low, high) if high > low else (low - 0.5, low + 0.5))
    width, height = WIDE - 16, TALL - 66
    edges = np.linspace(0, width, bars + 1).round().astype(int)
    for k, tall in enumerate(np.ceil(counts / counts.max() * height).astype(int).tolist()):
        canvas.box(x + int(edges[k]), y + height - tall, max(1, int(edges[k + 1] - edges[k]) - 1), tall, color)
    canvas.box(x, y + height, width, 1, LIGHT)
    left, right = format_value(values.min(), column), format_value(values.max(), column)
    canvas.text(x, y + height + 15, left, width=width // 2, size=12, color=GREY)
    canvas.text(x + width - min(width // 2, text_width(right, 12)), y + height + 15, right, width=width // 2, size=12, color=GREY)


def _names(canvas: Canvas, x: int, y: int, codes: Array, names: tuple[str, ...], color: tuple[int, int, int]) -> None:
    """Draw a bar for each of the commonest names."""
    counts = np.bincount(codes[codes < len(names)], minlength=len(names))
    common = np.argsort(-counts, kind="stable")[:NAMES].tolist()
    most, total = max(1, counts.max(initial=0)), max(1, counts.sum())
    for k, code in enumerate(common):
        tall = 16
        canvas.text(x, y + k * tall + 13, names[code], width=110, size=12)
        canvas.box(x + 116, y + k * tall + 3, max(1, int(120 * counts[code] / most)), tall - 4, color)
        canvas.text(x + 242, y + k * tall + 13, f"{counts[code] / total:.1%}", width=44, size=12, color=GREY)
    if len(names) > NAMES:
        canvas.text(x, y + NAMES * 16 + 14, f"and {len(names) - NAMES} more", width=WIDE - 16, size=12, color=GREY)


def format_value(value: Any, column: Column) -> str:
    """Format a value as in the original table."""
    if column.kind == "decimal":
        return f"{int(value) / 10**column.scale:g}"
    if column.unit:
        kind = "M8" if column.kind in ("date", "timestamp") else "m8"
        return str(np.asarray(int(value), np.int64).view(f"{kind}[{column.unit}]")).replace("T", " ")[:19]
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
