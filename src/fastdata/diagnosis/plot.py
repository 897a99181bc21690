"""The chart of a diagnosis: where a sample's time goes, as a waterfall, and the rate for each number of workers."""

from __future__ import annotations

import os
from typing import Any

from fastdata.bench.plot import DPI
from fastdata.diagnosis.findings import Findings
from fastdata.diagnosis.report import PARTS, SEEN
from fastdata.errors import needs

__all__ = ["draw"]

COLORS = {"storage": "#9aa0a6", "CPU": "#1a73e8", "copy": "#9334e6", "model": "#e8710a"}
DARK, LIGHT = "#3c4043", "#e8eaed"


def draw(found: Findings, path: str | os.PathLike[str]) -> None:
    """Draw a diagnosis as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib"):
        from matplotlib.figure import Figure  # not pyplot, which has state that belongs to the caller

    several = len(found.rates) > 1
    figure = Figure(figsize=(10.5 if several else 6.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=[1.25, 1])[:2] if several else [figure.add_subplot()]
    _waterfall(axes[0], found)
    if several:
        _rates(axes[1], found)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.set_axisbelow(True)
    workers = f"{found.workers} worker{'s' * (found.workers != 1)}"
    sure = "" if found.sure == "sure" else f" ({found.sure})"
    figure.suptitle(f"{found.subject}; {workers}\nlimit: {found.verdict}{sure}", fontsize=10.5, x=0.01, ha="left")
    figure.savefig(path, dpi=DPI, format="png")


def _waterfall(axes: Any, found: Findings) -> None:
    costs = vars(found.loop.costs)
    parts = [(title, resource, 1e3 * costs[name]) for name, (title, resource) in PARTS.items()]
    whole = sum(ms for *_, ms in parts) or 1.0
    parts = [part for part in parts if part[2] > SEEN * whole]
    at = 0.0
    for k, (_, resource, ms) in enumerate(parts):
        axes.barh(k, ms, left=at, height=0.66, color=COLORS[resource])
        if k + 1 < len(parts):
            axes.plot([at + ms] * 2, [k - 0.33, k + 1.33], color=DARK, linewidth=0.6)
        inside = at + ms > 0.7 * whole
        edge, shift, side = (at, -5, "right") if inside else (at + ms, 5, "left")
        text = f"{ms:.2f} ms" if ms >= 0.1 else f"{1e3 * ms:.0f} µs"
        axes.annotate(text, (edge, k), (shift, 0), textcoords="offset points", va="center", ha=side, fontsize=9)
        at += ms
    axes.set_yticks(range(len(parts)), [title for title, *_ in parts])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlim(0, whole * 1.02)
    axes.set_xlabel("ms for a sample, each part by itself", fontsize=9)
    axes.grid(axis="x", color=LIGHT)
    axes.tick_params(axis="y", length=0)
    used = [resource for resource in COLORS if any(resource == other for _, other, _ in parts)]
    handles = [axes.barh(0, 0, color=COLORS[resource], label=resource) for resource in used]
    axes.legend(handles=handles, loc="lower left", frameon=False, fontsize=9)


def _rates(axes: Any, found: Findings) -> None:
    axes.plot(found.rates.keys(), found.rates.values(), color=COLORS["CPU"], linestyle="--", label="loader, fitted")
    measured = {k: found.rates[k] for k in sorted(found.loop.measured) if k in found.rates}
    axes.plot(measured.keys(), measured.values(), "o", color=COLORS["CPU"], label="loader, measured")
    top = max(found.rates.values())
    if found.loop.step:
        model = 1 / found.loop.step
        if model <= 3 * top:
            axes.axhline(model, color=COLORS["model"], label="model alone")
            top = max(top, model)
        else:
            axes.plot([], [], color=COLORS["model"], label=f"model alone: {model:,.0f}, far above")
        both = [1 / found.loop.seconds(k) for k in found.rates]
        axes.plot(found.rates.keys(), both, color=DARK, linewidth=1, label="loader and model, predicted")
    if found.together is not None:
        axes.plot([found.workers], [found.together], "D", color=DARK, label="loader and model, measured")
    axes.axvline(found.conditions.cores, color="#9aa0a6", linewidth=0.8, linestyle=":")
    axes.annotate("cores", (found.conditions.cores, 1.12 * top), (3, -9), textcoords="offset points", fontsize=8, color="#5f6368")
    axes.set_ylim(0, 1.12 * top)
    axes.set_xlabel("workers", fontsize=9)
    axes.set_ylabel("samples/s", fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(color=LIGHT)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
