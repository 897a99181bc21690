"""The chart: one panel a work, images/s of each contestant as bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

COLORS = {"limit": "#9aa0a6", "ours": "#1a73e8", "other": "#e8710a"}
MEANINGS = {"limit": "bare processes: the limit of fastdata's code", "ours": "fastdata.Loader", "other": "peers"}
BAR_INCHES = 0.3


def draw(result: Mapping[str, Any], path: str | Path) -> None:
    """Draw the result as a PNG; the whiskers go from the least to the greatest round."""
    works = result["works"]
    heights = [len(work["results"]) + 2.2 for work in works]
    figure = Figure(figsize=(9.0, 1.4 + BAR_INCHES * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(works), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, work in zip(panels, works, strict=True):
        _panel(axes, work)
    panels[-1].set_xlabel("images/s (median; whiskers: least and greatest round)")
    figure.legend(
        handles=[Patch(color=COLORS[kind], label=meaning) for kind, meaning in MEANINGS.items()],
        loc="outside lower center",
        ncols=len(MEANINGS),
        frameon=False,
        fontsize=9,
    )
    settings, found = result["settings"], result["machine"]
    figure.suptitle(
        f"{settings['images']:,} images, batches of {settings['batch']}, {settings['workers']} workers or threads each\n"
        f"{found['cores']} cores, {found['cpu']}",
        fontsize=10.5,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150, format="png")


def _panel(axes: Any, work: Mapping[str, Any]) -> None:
    rows = sorted(work["results"], key=lambda row: row["images_per_s"]["median"])
    rates = [row["images_per_s"] for row in rows]
    middle = [rate["median"] for rate in rates]
    reach = [[m - r["min"] for m, r in zip(middle, rates, strict=True)], [r["max"] - m for m, r in zip(middle, rates, strict=True)]]
    axes.barh(range(len(rows)), middle, height=0.66, color=[COLORS[row["kind"]] for row in rows])
    axes.errorbar(middle, range(len(rows)), xerr=reach, fmt="none", ecolor="#3c4043", elinewidth=1, capsize=2.5)
    for k, (row, rate) in enumerate(zip(rows, rates, strict=True)):
        axes.annotate(
            f"{rate['median']:,.0f}  ({row['ratio']['median']:.2f} of fastdata)",
            (rate["max"], k),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    names = [row["name"] if row["resize"] is None else f"{row['name']} [{row['resize']}]" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_xlim(0, max(rate["max"] for rate in rates) * 1.32)
    axes.set_title(work["title"] + "" * work["counts"] + " (does not count)" * (not work["counts"]), fontsize=9.5, loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e8eaed")
    axes.set_axisbelow(True)
