"""Charts of HTML that follow the width of the page: bars, histograms and dots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.report.html import Html, tag
from fastdata.words import number_of

__all__ = ["bars", "dots", "histogram", "many", "number", "share"]

Array = np.ndarray[Any, np.dtype[Any]]

BINS = 40
DOTS = 150  # most dots


def number(value: float) -> str:
    """Format a number for people."""
    return f"{value:,.0f}" if isinstance(value, int | np.integer) or 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def many(count: int, what: str, verb: str = "") -> str:
    """Format a number of things as `number_of` does, with commas between thousands."""
    return f"{count:,}{number_of(count, what, verb)[len(str(count)) :]}"


def share(part: float, whole: float) -> str:
    """Format a share as a percentage."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 else "< 0.1 %"


def bars(
    items: Sequence[tuple[str, float]],
    *,
    what: str,
    whole: float | None = None,
    most: float | None = None,
    colors: Sequence[str] = (),
    form: Any = number,
) -> Html:
    """Return a table with a bar for each (name, value).

    Args:
        what: the meaning of the values, for readers who do not see the bars.
        whole: print shares of this sum too.
        most: the value of the longest bar; None: the largest one.
        colors: one for each bar, such as "#a0b0c0".
        form: formats a value.
    """
    most = most or max((value for _, value in items), default=0) or 1
    rows = []
    for k, (name, value) in enumerate(items):
        color = f";background:{colors[k]}" if colors else ""
        bar = tag("i", style=f"width:{100 * value / most:.2f}%{color}")
        shown = form(value) + ("" if whole is None else f" · {share(value, whole)}")
        rows.append(tag("tr", tag("th", name, scope="row", title=name), tag("td", bar, class_="bar"), tag("td", shown)))
    return tag("table", tag("caption", what), tag("tbody", rows), class_="bars")


def histogram(values: Array, what: str, *, log: bool = False, form: Any = number) -> Html:
    """Return the distribution of finite numbers.

    Args:
        what: their meaning.
        log: bins of equal ratio, for positive values that span orders of magnitude.
        form: formats a value.
    """
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return tag("p", f"{what}: no values", class_="none")
    low, high = float(numbers.min()), float(numbers.max())
    log = log and low > 0 and high / low >= 20
    if low == high:
        return tag("p", f"{what}: always {form(low)}", class_="none")
    step = -(-(high - low + 1) // BINS) if values.dtype.kind in "iu" and not log else 0.0  # whole numbers in a bin
    if log:
        edges = np.geomspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high
    elif step:
        edges = np.arange(low, high + step, step) - 0.5
        edges = np.append(edges, edges[-1] + step) if edges[-1] < high else edges
    else:
        edges = np.linspace(low, high, BINS + 1)
    counts = np.histogram(numbers, edges)[0].tolist()
    most = max(counts)
    columns = []
    for k, found in enumerate(counts):
        first, last = (edges[k] + 0.5, edges[k + 1] - 0.5) if step else (edges[k], edges[k + 1])
        span = form(first) if first == last else f"{form(first)} to {form(last)}"
        columns.append(
            tag("i", style=f"height:{100 * found / most:.1f}%", title=f"{span}: {found:,}", class_=None if found else "no")
        )
    median = float(np.median(numbers))
    said = f"{what}: {form(low)} to {form(high)}, median {form(median)}"
    axis = [tag("span", form(low)), tag("span", f"median {form(median)}"), tag("span", form(high))]
    return tag(
        "figure",
        tag("figcaption", what, tag("small", " (log scale)") if log else None),
        tag("div", columns, class_="hist", role="img", aria_label=said),
        tag("div", axis, class_="axis"),
        class_="chart",
    )


def dots(x: Array, y: Array, what: str, names: tuple[str, str]) -> Html:
    """Return pairs of positive numbers as dots, whose areas are the numbers of pairs.

    Args:
        x, y: the numbers.
        what: their meaning.
        names: of the axes.
    """
    wide, tall = float(x.max()), float(y.max())
    pairs, counts = np.unique(np.stack([x, y], axis=1), axis=0, return_counts=True)
    if len(pairs) > DOTS:  # on a grid
        steps = np.array([wide, tall]) / 14
        pairs, places = np.unique(np.stack([x, y], axis=1) // steps, axis=0, return_inverse=True)
        pairs, counts = (pairs + 0.5) * steps, np.bincount(places.ravel())
    marks = []
    for (a, b), count in sorted(zip(pairs.tolist(), counts.tolist(), strict=True), key=lambda item: -item[1]):
        side = 4 + 22 * math.sqrt(count / counts.max())
        place = f"left:{100 * a / wide / 1.06:.2f}%;bottom:{100 * b / tall / 1.06:.2f}%;width:{side:.1f}px;height:{side:.1f}px"
        marks.append(tag("i", style=place, title=f"{number(round(a))} × {number(round(b))}: {count:,}"))
    said = f"{what}: {names[0]} up to {number(wide)}, {names[1]} up to {number(tall)}"
    return tag(
        "figure",
        tag("figcaption", what),
        tag("div", tag("span", f"{names[1]} {number(tall)}", class_="top"), marks, class_="dots", role="img", aria_label=said),
        tag("div", tag("span", 0), tag("span", f"{names[0]} {number(wide)}"), class_="axis"),
        class_="chart",
    )
