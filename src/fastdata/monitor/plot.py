"""Draw the log as a picture, train.png."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fastdata.errors import needs

__all__ = ["draw_log"]

Record = dict[str, Any]

FIELDS = {"time", "kind", "update", "epoch", "ema", "loss", "skipped", "lr", "resumed_at"}
RATES = {"samples_per_s", "samples_per_s_without_waiting", "wait"}
SMOOTHED = 30  # the moving average of the loss is over 1/30 of the points
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
    train, evaluations, epochs = (_records(log, kind) for kind in ("train", "eval", "epoch"))
    every = sorted({name for record in (*train, *evaluations) for name in record} - FIELDS - RATES)  # metrics and logged numbers
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
    figure.suptitle(f"{log.resolve().parent.name}: {_so_far(train, evaluations, epochs)}")
    if len(every) > len(names):
        figure.supxlabel(f"{len(names)} of {len(every)} metrics are drawn", fontsize="medium")
    figure.align_ylabels(plots)
    part = picture.with_name(f".{picture.name}.part")
    try:
        figure.savefig(part, dpi=120, format="png")
        part.replace(picture)
    finally:
        part.unlink(missing_ok=True)


def _records(log: Path, kind: str) -> list[Record]:
    """Return the records of one kind, by update. A killed run may have logged an update twice, or half: the later record wins."""
    found: dict[int, Record] = {}
    for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("kind") == kind:
            found[record["update"]] = found.get(record["update"], {}) | record
    return [found[update] for update in sorted(found)]


def _losses(axes: Any, train: list[Record], evaluations: list[Record]) -> None:
    points = _points(train, "loss")
    smooth = len(points) >= SMOOTHED
    _curve(axes, train, "loss", color="C0", alpha=0.3 if smooth else 1, label="training")
    if smooth:
        axes.plot(*zip(*_smoothed(points), strict=True), color="C0", label="training, moving average")
    _curve(axes, evaluations, "loss", color="C1", marker="o", markersize=3, label=_evaluation(evaluations))


def _evaluation(records: list[Record]) -> str:
    return "evaluation of averaged weights (EMA)" if any(record.get("ema") for record in records) else "evaluation"


def _smoothed(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return an exponential moving average, corrected for the bias at its beginning."""
    keep = 1 - SMOOTHED / len(points) if len(points) > 2 * SMOOTHED else 0.5
    total, weight, found = 0.0, 0.0, list[tuple[int, float]]()
    for update, value in points:
        total, weight = keep * total + value, keep * weight + 1
        found.append((update, total / weight))
    return found


def _points(records: list[Record], name: str, scale: float = 1) -> list[tuple[int, float]]:
    values = ((record["update"], record.get(name)) for record in records)
    return [(update, value * scale) for update, value in values if value is not None and math.isfinite(value)]


def _curve(axes: Any, records: list[Record], name: str, *, scale: float = 1, **style: Any) -> None:
    if points := _points(records, name, scale):
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


def _so_far(train: list[Record], evaluations: list[Record], epochs: list[Record]) -> str:
    update = max((record["update"] for records in (train, evaluations, epochs) for record in records), default=0)
    return f"{update:,} updates" + (f", {epochs[-1]['epoch']:,} epochs" if epochs else "")
