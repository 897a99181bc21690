"""train.png: what the log says, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdata.errors import needs

__all__ = ["draw_log"]


def draw_log(log: Path, picture: Path) -> None:
    """Losses, metrics, learning rate and share of waiting over the updates, from a log of the Trainer.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib"):
        from matplotlib.figure import Figure
    records = [json.loads(text) for text in log.read_text(encoding="utf-8").splitlines()]
    kinds = {kind: [record for record in records if record["kind"] == kind] for kind in ("train", "eval")}
    metrics = sorted({name for record in kinds["eval"] for name in record} - {"time", "kind", "update", "epoch", "loss"})
    names = ["loss", *metrics, "learning rate", "waiting, %"]
    figure = Figure(figsize=(8, 1.5 + 1.7 * len(names)), layout="constrained")
    heights = [2, *[1] * (len(names) - 1)]
    plots = figure.subplots(len(names), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    loss, *others, rate, wait = plots
    _curve(loss, kinds["train"], "loss", label="training")
    if kinds["eval"]:
        _curve(loss, kinds["eval"], "loss", label="evaluation", marker="o", markersize=3)
    for axes, name in zip(others, metrics, strict=True):
        _curve(axes, kinds["eval"], name, marker="o", markersize=3, color="C1")
    _curve(rate, kinds["train"], "lr")
    _curve(wait, kinds["train"], "wait", scale=100)
    for axes, name in zip(plots, names, strict=True):
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    loss.legend(frameon=False)
    rate.set_ylim(bottom=0)
    wait.set_ylim(0, 100)
    wait.set_xlabel("updates")
    figure.align_ylabels(plots)
    figure.savefig(picture, dpi=120)


def _curve(axes: Any, records: list[dict[str, Any]], name: str, *, scale: float = 1, **style: Any) -> None:
    """A killed run may have logged some updates twice: the later record counts."""
    points = {record["update"]: record[name] * scale for record in records if record.get(name) is not None}
    axes.plot(sorted(points), [points[update] for update in sorted(points)], **style)
