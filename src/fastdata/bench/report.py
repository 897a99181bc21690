"""The output of `fastdata bench`: a table of results, and the bottleneck in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdata.bench.harness import table
from fastdata.bench.loaders import Task

__all__ = ["describe", "result_lines", "verdict"]

NEAR = 0.85  # share of the decode limit above which moving batches does not matter
BUSY = 0.7  # share of the cores' time below which decoding waits for something
GAIN = 1.15  # gain of memory over disk above which the disk matters
NOISY = 2.0  # largest ratio between the rates of a contestant's rounds


def describe(task: Task) -> dict[str, Any]:
    """Return what is in the store."""
    dataset = task.dataset()
    images, form = dataset._images, dataset._images.form
    sizes = images.store.index(images.variant).lengths
    return {
        "name": Path(task.path).name,
        "images": len(dataset),
        "size": images.variant.name,
        "codec": form.codec,
        "dtype": form.dtype,
        "image_bytes": float(sizes.mean()),
        "store_bytes": int(sizes.sum()),
        "batch_shape": [min(task.batch_size, len(dataset)), task.crop, task.crop, form.channels],
    }


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the table.

    Rates are shares of the limit in the same round, times the limit: clock rates and other programs change between rounds.
    """
    headers = ["", "of the limit", "min - max", "images/s", "MB/s in", "CPU ms/image", "first batch, ms", "memory, MB"]
    limit = next(row for row in result["results"] if row["kind"] == "limit")["images_per_s"]["median"]
    rows = [_cells(row, row["ratio"]["median"] * limit, result["store"]["image_bytes"]) for row in result["results"]]
    return table(headers, rows)


def _cells(row: Mapping[str, Any], images_per_s: float, image_bytes: float) -> list[str]:
    ratio, memory = row["ratio"], row["pss_bytes"]
    return [
        row["name"],
        f"{ratio['median']:.2f}",
        "" if row["kind"] == "limit" else f"{ratio['min']:.2f} - {ratio['max']:.2f}",
        f"{images_per_s:,.0f}",
        f"{images_per_s * image_bytes / 1e6:.1f}",
        f"{row['cpu_ms_per_image']:.2f}",
        f"{row['first_batch_ms']:.0f}",
        "?" if memory is None else f"{memory / 1e6:,.0f}",
    ]


def verdict(results: Sequence[Mapping[str, Any]], cores: int) -> str:
    """Return the bottleneck in one sentence, or that the rounds differ too much to tell."""
    spread = {row["name"]: (row["images_per_s"]["min"], row["images_per_s"]["max"]) for row in results}
    name, (least, most) = max(spread.items(), key=lambda item: item[1][1] / item[1][0])
    if most > NOISY * least:
        return (
            f"Too noisy to tell: from round to round, {name} made {least:,.0f} to {most:,.0f} images/s. "
            "End other programs, or measure longer with --seconds and --repeats."
        )
    return _bottleneck(results, cores)


def _bottleneck(results: Sequence[Mapping[str, Any]], cores: int) -> str:
    """Return one sentence: how close the best Loader is to the limit, what limits it, and what to change."""
    limit = next(row for row in results if row["kind"] == "limit")
    ours = [row for row in results if row["kind"] == "ours"]
    disk = max((row for row in ours if "LMDB" in row["name"]), key=lambda row: row["ratio"]["median"])
    memory = next((row["ratio"] for row in ours if "RAM" in row["name"]), None)
    share, count = disk["ratio"]["median"], disk["workers"]
    where = f"on {'this core' if cores == 1 else f'these {cores} cores'}"
    text = f"The Loader with {count} worker{'s' * (count != 1)} reaches {share:.2f} of what decoding alone allows {where}: "
    if memory and memory["median"] > GAIN * share and memory["min"] > disk["ratio"]["max"]:  # in every round
        return text + f"reading the store is the limit; RAMDataset reaches {memory['median']:.2f}, and a faster disk would help."
    if limit["cores_busy"] < BUSY * cores:
        idle = f"decoding alone keeps only {limit['cores_busy']:.1f} cores busy; "
        if memory and memory["median"] <= share:
            return text + idle + "the disk is not the limit, as RAMDataset is no faster: try a quieter machine."
        return text + idle + f"the disk or other programs are the limit: try {'RAMDataset, or ' * bool(memory)}a quieter machine."
    if share >= NEAR:
        return text + "decoding is the limit; more cores or a smaller --size help."
    return text + "making batches and handing them over is the limit; other numbers of --workers or a larger --batch-size may help."
