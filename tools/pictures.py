"""Draw the picture of README and docs from the newest results in benchmarks/results: `make pictures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/pictures"
OURS, OTHERS = "#1a73e8", "#e8710a"
SHOWN = {  # the name in the results -> the name in the picture, for what most people use
    "fastdata": "fastdata",
    "tf.data": "tf.data",
    "FFCV, JPEG": "FFCV",
    "DALI": "DALI",
    "WebDataset + cv2": "WebDataset + cv2",
    "torch DataLoader + cv2": "DataLoader + cv2",
    "torch DataLoader + Pillow": "DataLoader + Pillow",
    "MosaicML Streaming + cv2": "MosaicML Streaming + cv2",
}
WORKS = {"train-256": "random crops of 224 x 224, short side 256", "eval-256": "centre crops of 224 x 224, short side 256"}


def peers() -> None:
    """Draw images/s of the Loader beside other loaders."""
    newest = max(path for path in (ROOT / "benchmarks/results").glob("peers-2*.json"))
    result = json.loads(newest.read_text())
    works = [work for work in result["works"] if work["name"] in WORKS]
    figure = Figure(figsize=(9.0, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, work in zip(figure.subplots(1, len(works)), works, strict=True):
        _bars(axes, work)
    figure.savefig(OUT / "peers.png", dpi=150)


def _bars(axes: Any, work: dict[str, Any]) -> None:
    found = {SHOWN[row["name"]]: row["images_per_s"]["median"] for row in work["results"] if row["name"] in SHOWN}
    rows = sorted(found.items(), key=lambda row: row[1])
    colors = [OURS if name == "fastdata" else OTHERS for name, _ in rows]
    axes.barh([name for name, _ in rows], [rate for _, rate in rows], 0.7, color=colors)
    for k, (_, rate) in enumerate(rows):
        axes.annotate(f"{rate:,.0f}", (rate, k), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_title(WORKS[work["name"]], fontsize=9.5, loc="left")
    axes.set_xlabel("images/s", fontsize=8.5)
    axes.set_xlim(0, max(found.values()) * 1.15)
    axes.tick_params(labelsize=8.5, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


if __name__ == "__main__":
    peers()
