"""Charts as HTML and SVG that follow the width of the page: bars, histograms, dots and lines.

Text is never inside an SVG, which would shrink it on a phone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fastdata.report.html import Html, tag
from fastdata.words import number_of

__all__ = ["Line", "bars", "dots", "histogram", "line_chart", "many", "number", "share"]

Array = np.ndarray[Any, np.dtype[Any]]

BINS = 40
POINTS = 300  # most points of a line
DOTS = 150  # most dots
TICKS = 5


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


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: of the line, in the legend.
        points: (x, y).
        color: the number of its colour, which runs have in all charts.
        faint: draw it thin, as the values that another line averages.
        dashed: draw it dashed.
        marks: mark the points.
    """

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    faint: bool = False
    dashed: bool = False
    marks: bool = False


def line_chart(
    lines: Sequence[Line],
    what: str,
    *,
    zero: bool = False,
    log: bool = False,
    top: float | None = None,
    ends: Sequence[float] = (),
    over: str = "updates",
) -> Html:
    """Return lines.

    Args:
        what: the meaning of y.
        zero: begin y at 0.
        log: draw y on a logarithmic scale, if all values are positive and span more than a factor of 100.
        top: the upper end of y.
        ends: x of the ends of epochs.
        over: what x counts.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return Html()
    every = [y for line in lines for _, y in line.points]
    low, high = min(every), max(every)
    log = log and low > 0 and high / low > 100
    low, high = 0.0 if zero else low, high if top is None else top
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    last = max(x for line in lines for x, _ in line.points) or 1
    scale = _logarithmic(low, high) if log else _linear(low, high)

    def place(y: float) -> float:
        a, b, value = (math.log(v) for v in (scale[0], scale[1], y)) if log else (scale[0], scale[1], y)
        return 100 - 100 * (value - a) / (b - a)

    drawn, labels = list[Html](), list[Html]()
    for y in scale[2]:
        drawn.append(tag("path", d=f"M0 {place(y):.2f}H100", class_="grid"))
        labels.append(tag("span", number(y), style=f"top:{place(y):.2f}%"))
    drawn += [tag("path", d=f"M{100 * x / last:.3f} 0V100", class_="epoch") for x in ends]
    data, marks = list[dict[str, Any]](), list[Html]()
    for line in lines:
        points = _thinned(line.points)
        path = "M" + "L".join(f"{100 * x / last:.3f} {place(y):.3f}" for x, y in points)
        kinds = [name for name, on in (("faint", line.faint), ("dashed", line.dashed)) if on]
        drawn.append(tag("path", d=path, class_=" ".join(["line", f"c{line.color % 8}", *kinds])))
        if line.marks or len(points) == 1:
            marks += [
                tag("i", class_=f"c{line.color % 8}", style=f"left:{100 * x / last:.3f}%;top:{place(y):.3f}%") for x, y in points
            ]
        if not line.faint:
            data.append(
                {
                    "name": line.name,
                    "color": line.color % 8,
                    "dashed": line.dashed,
                    "points": [[x, float(f"{y:.5g}")] for x, y in points],
                }
            )
    said = f"{what}: " + "; ".join(
        f"{line.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in lines
    )
    plot = tag("svg", drawn, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    keys = [tag("span", tag("i", class_=f"c{one['color']}{' dash' if one['dashed'] else ''}"), one["name"]) for one in data]
    ticks = [tag("span", text) for text in (0, number(last / 2), f"{number(last)} {over}")]
    return tag(
        "figure",
        tag("figcaption", what, tag("small", " (log scale)") if log else None),
        tag("div", keys, class_="legend") if len(keys) > 1 else None,
        tag(
            "div",
            tag("div", labels, class_="ylabels"),
            tag("div", plot, marks, class_="plot", data_lines=json.dumps(data), data_last=last, role="img", aria_label=said),
            class_="lines",
        ),
        tag("div", ticks, class_="axis indented"),
        class_="chart",
    )


def _linear(low: float, high: float) -> tuple[float, float, list[float]]:
    """Return the ends of an axis, and its ticks, at round numbers."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return first * step, last * step, [k * step for k in range(first, last + 1)]


def _logarithmic(low: float, high: float) -> tuple[float, float, list[float]]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = -(-(last - first) // TICKS)
    return 10.0**first, 10.0**last, [10.0**k for k in range(first, last + 1, every)]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the lowest and the highest point of each of equal parts, in order, so that peaks stay."""
    if len(points) <= POINTS:
        return list(points)
    found: list[tuple[float, float]] = []
    edges = np.linspace(0, len(points), POINTS // 2 + 1).astype(int).tolist()
    for start, end in pairwise(edges):
        part = points[start:end]
        found += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return sorted({points[0], *found, points[-1]})
