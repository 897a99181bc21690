"""The chart of `fastdata bench`: a bar of images/s for each contestant, and the decode limit as a line, on one scale."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastdata.bench.report import limit_of, rate
from fastdata.errors import needs

__all__ = ["draw"]

COLORS = {"limit": "#9aa0a6", "ours": "#1a73e8", "other": "#e8710a"}
MEANINGS = {"limit": "decoding alone", "ours": "fastdata.Loader", "other": "hand-written DataLoader"}
DPI = 150


def draw(result: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw the result of `fastdata bench` as a PNG.

    A bar is a contestant's share of the limit, times the limit; its whiskers show the minimum and maximum of the rounds.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib"):
        from matplotlib.figure import Figure  # not pyplot, which has state that belongs to the caller
        from matplotlib.patches import Patch

    limit = limit_of(result["results"])
    rows = sorted(result["results"], key=lambda row: row["ratio"]["median"])
    middle, least, most = ([rate(row, limit, which) for row in rows] for which in ("median", "min", "max"))
    figure = Figure(figsize=(9.0, 1.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    reach = [[m - low for m, low in zip(middle, least, strict=True)], [high - m for m, high in zip(middle, most, strict=True)]]
    axes.barh(range(len(rows)), middle, height=0.66, color=[COLORS[row["kind"]] for row in rows])
    axes.errorbar(middle, range(len(rows)), xerr=reach, fmt="none", ecolor="#3c4043", elinewidth=1, capsize=2.5)
    axes.axvline(limit, color="#3c4043", linestyle="--", linewidth=1, zorder=0)
    for k, row in enumerate(rows):
        share = "the limit" if row["kind"] == "limit" else f"{row['ratio']['median']:.2f} of the limit"
        axes.annotate(
            f"{middle[k]:,.0f}  ({share})",
            (max(most[k], limit if middle[k] > 0.75 * limit else 0.0), k),  # not on top of the line
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_xlim(0, max(*most, limit) * 1.4)
    axes.set_xlabel("images/s (median share of the limit, times the limit; whiskers: min and max of the rounds)", fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e8eaed")
    axes.set_axisbelow(True)
    kinds = [kind for kind in COLORS if any(row["kind"] == kind for row in rows)]
    figure.legend(
        handles=[Patch(color=COLORS[kind], label=MEANINGS[kind]) for kind in kinds],
        loc="outside lower center",
        ncols=len(kinds),
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(_title(result), fontsize=10.5, x=0.01, ha="left")
    figure.savefig(path, dpi=DPI, format="png")


def _title(result: Mapping[str, Any]) -> str:
    store, task, found = result["store"], result["settings"], result["machine"]
    what = f"{store['images']:,} images, size {store['size']}, {store['codec']}, {store['image_bytes'] / 1e3:.0f} kB each"
    how = f"random crops of {task['crop']}, batches of {task['batch_size']}"
    name = store["name"] if len(store["name"]) <= 36 else store["name"][:33] + "..."
    noisy = "\n" + result["verdict"].partition(".")[0] * result["verdict"].startswith("Too noisy")
    return f"{name}: {what}\n{how}; {found['cores']} cores, {found['cpu']}{noisy.rstrip()}"
