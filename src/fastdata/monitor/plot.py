"""train.png: what the log says, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdata.errors import needs

__all__ = ["draw_log"]


def draw_log(log: Path, picture: Path) -> None:
    """Loss, rate of learning and share of waiting over the updates, from a log of the Trainer.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib"):
        from matplotlib.figure import Figure
    records = [json.loads(text) for text in log.read_text(encoding="utf-8").splitlines()]
    kinds = {kind: [record for record in records if record["kind"] == kind] for kind in ("train", "eval")}
    figure = Figure(figsize=(8, 7), layout="constrained")
    loss, rate, wait = figure.subplots(3, 1, sharex=True)
    _curve(loss, kinds["train"], "loss", label="training")
    _curve(loss, kinds["eval"], "loss", label="evaluation", marker="o")
    _curve(rate, kinds["train"], "lr")
    _curve(wait, kinds["train"], "wait", scale=100)
    for axes, name in ((loss, "loss"), (rate, "learning rate"), (wait, "waiting for data, %")):
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    loss.legend()
    wait.set_ylim(0, 100)
    wait.set_xlabel("updates")
    figure.savefig(picture, dpi=120)


def _curve(axes: Any, records: list[dict[str, Any]], name: str, *, scale: float = 1, **style: Any) -> None:
    """A killed run may have logged some updates twice: the later record counts."""
    points = {record["update"]: record[name] * scale for record in records if record.get(name) is not None}
    axes.plot(sorted(points), [points[update] for update in sorted(points)], **style)
