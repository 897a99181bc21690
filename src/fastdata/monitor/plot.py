"""Draw the log as a picture, train.png."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fastdata.errors import needs
from fastdata.monitor.history import SMOOTHED, History, Record, points_of, smoothed

__all__ = ["draw_log"]

MOST_EPOCHS = 12  # most epochs that are numbered
MOST_NAMES = 12  # most metrics that are drawn


def draw_log(log: Path, picture: Path) -> None:
    """Draw losses, metrics, logged numbers, learning rate, samples/s and the share of waiting over the updates of a Trainer's log.

    The picture is replaced atomically.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    history = History.read(log)
    train, evaluations, epochs, every = history.train, history.evaluations, history.epochs, history.metrics
    names = every[:MOST_NAMES]
    labels = ["loss", *names, "learning rate", "samples / s", "waiting, % of time"]
    figure = Figure(figsize=(8, 1.5 + 1.7 * len(labels)), layout="constrained")
    heights = [2, *[1] * (len(labels) - 1)]
    plots = figure.subplots(len(labels), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    loss, *others, rate, speed, wait = plots
    _losses(loss, train, evaluations)
    for axes, name in zip(others, names, strict=True):
        _curve(axes, train, name, color="C0", label="training")
        _curve(axes, evaluations, name, marker="o", markersize=3, color="C1", label=_evaluation(evaluations))
    _curve(rate, train, "lr")
    _curve(speed, train, "samples_per_s_without_waiting", color="C0", alpha=0.4, linestyle="--", label="without waiting for data")
    _curve(speed, train, "samples_per_s", color="C0", label="as it was")
    speed.yaxis.set_major_formatter(EngFormatter())
    _curve(wait, train, "wait", scale=100)
    for axes, label in zip(plots, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    for axes in (rate, speed):
        axes.set_ylim(bottom=0)
    wait.set_ylim(0, 100)
    wait.set_xlabel("updates")
    _epochs(plots, epochs)
    figure.suptitle(f"{log.resolve().parent.name}: {_so_far(history)}")
    if len(every) > len(names):
        figure.supxlabel(f"{len(names)} of {len(every)} metrics are drawn", fontsize="medium")
    figure.align_ylabels(plots)
    part = picture.with_name(f".{picture.name}.part")
    try:
        figure.savefig(part, dpi=120, format="png")
        part.replace(picture)
    finally:
        part.unlink(missing_ok=True)


def _losses(axes: Any, train: list[Record], evaluations: list[Record]) -> None:
    points = points_of(train, "loss")
    smooth = len(points) >= SMOOTHED
    _curve(axes, train, "loss", color="C0", alpha=0.3 if smooth else 1, label="training")
    if smooth:
        axes.plot(*zip(*smoothed(points), strict=True), color="C0", label="training, moving average")
    _curve(axes, evaluations, "loss", color="C1", marker="o", markersize=3, label=_evaluation(evaluations))


def _evaluation(records: list[Record]) -> str:
    return "evaluation of averaged weights (EMA)" if any(record.get("ema") for record in records) else "evaluation"


def _curve(axes: Any, records: list[Record], name: str, *, scale: float = 1, **style: Any) -> None:
    if points := points_of(records, name, scale):
        axes.plot(*zip(*points, strict=True), **style)


def _epochs(plots: Any, epochs: list[Record]) -> None:
    """Draw lines at the ends of epochs, and the epochs' numbers above."""
    every = math.ceil(len(epochs) / MOST_EPOCHS)
    shown = [record for record in epochs if record["epoch"] % every == 0] if epochs else []
    for axes in plots:
        for record in shown:
            axes.axvline(record["update"], color="0.5", alpha=0.3, linewidth=0.8)
    if shown:
        top = plots[0].secondary_xaxis("top")
        top.set_xticks([record["update"] for record in shown], [str(record["epoch"]) for record in shown])
        top.set_xlabel("epochs")
        top.spines["top"].set_visible(False)


def _so_far(history: History) -> str:
    epochs = history.epochs
    return f"{history.updates:,} updates" + (f", {epochs[-1]['epoch']:,} epochs" if epochs else "")
