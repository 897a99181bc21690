"""What `fastdata bench` says: the bytes beforehand, a table, and the bottleneck in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.bench.harness import table
from fastdata.bench.loaders import AHEAD, Task
from fastdata.errors import StoreError
from fastdata.machine import available_cores

__all__ = ["bottleneck", "byte_lines", "describe", "result_lines"]

PROCESS_BYTES = 100 << 20  # what Python, torch and cv2 take in a worker, about
NEAR = 0.85  # share of the decode limit above which moving batches is not worth a thought
BUSY = 0.7  # share of the cores' time; below, decoding waits for something
GAIN = 1.15  # of memory over disk, above which the disk matters


def describe(task: Task) -> dict[str, Any]:
    """What is in the store, and the bytes that follow from it."""
    dataset = task.dataset()
    images, form = dataset._images, dataset._images.form
    if not len(dataset):
        raise StoreError(f"{task.path} has no images to measure with")
    heights, widths = images.sides(np.arange(len(dataset)))
    sizes, samples = images.store.samples[f"{images.variant.name}/bytes"], min(task.batch_size, len(dataset))
    batch = samples * int(form.nbytes(task.crop**2))
    scratch = max(1 << 20, int(form.nbytes((heights * widths).max())))
    return {
        "name": Path(task.path).name,
        "images": len(dataset),
        "size": images.variant.name,
        "codec": form.codec,
        "dtype": form.dtype,
        "image_bytes": float(sizes.mean()),
        "store_bytes": int(sizes.sum()),
        "batch_shape": [samples, *form.shape(task.crop, task.crop)],
        "batch_bytes": batch,
        "scratch_bytes": scratch,
        "worker_bytes": AHEAD * batch + scratch + PROCESS_BYTES,
    }


def byte_lines(about: Mapping[str, Any], counts: Sequence[int], ram: bool) -> Iterator[str]:
    """What will be held in memory: a batch, a worker, and all contestants at once; `ram`: a copy of the store too."""
    shape, scratch = " x ".join(map(str, about["batch_shape"])), about["scratch_bytes"]
    processes = 2 * available_cores() + sum(counts) + max(counts) * (ram + torch.cuda.is_available())
    total = processes * about["worker_bytes"] + ram * about["store_bytes"]
    yield f"a batch:  {shape} {about['dtype']} = {about['batch_bytes'] / 1e6:.1f} MB"
    yield (
        f"a worker: {AHEAD} batches + {scratch / 1e6:.1f} MB to decode into + about {PROCESS_BYTES / 1e6:.0f} MB of its own"
        f" = {about['worker_bytes'] / 1e6:.0f} MB"
    )
    yield f"in all:   up to {processes} processes{' and a copy of the store' * ram} = {total / 1e6:,.0f} MB"


def result_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table."""
    headers = ["", "images/s", "least - greatest", "MB/s in", "CPU ms/image", "of the limit", "first batch, ms", "memory, MB"]
    return table(headers, [_cells(row) for row in results])


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate, memory = row["images_per_s"], row["pss_bytes"]
    return [
        row["name"],
        f"{rate['median']:,.0f}",
        f"{rate['min']:,.0f} - {rate['max']:,.0f}",
        f"{row['mb_per_s']:.1f}",
        f"{row['cpu_ms_per_image']:.2f}",
        f"{row['ratio']['median']:.2f}",
        f"{row['first_batch_ms']:.0f}",
        "?" if memory is None else f"{memory / 1e6:,.0f}",
    ]


def bottleneck(results: Sequence[Mapping[str, Any]], cores: int) -> str:
    """One sentence: how far the best Loader is from the limit, what holds it back, and what to change."""
    limit = next(row for row in results if row["kind"] == "limit")
    ours = [row for row in results if row["kind"] == "ours"]
    disk = max((row for row in ours if "LMDB" in row["name"]), key=lambda row: row["ratio"]["median"])
    memory = next((row["ratio"] for row in ours if "RAM" in row["name"]), None)
    share, count = disk["ratio"]["median"], disk["workers"]
    where = f"on {'this core' if cores == 1 else f'these {cores} cores'}"
    said = f"The Loader with {count} worker{'s' * (count != 1)} reaches {share:.2f} of what decoding alone allows {where}: "
    if memory and memory["median"] > GAIN * share and memory["min"] > disk["ratio"]["max"]:  # in every round
        return said + f"reading the store is the limit; RAMDataset reaches {memory['median']:.2f}, and a faster disk would help."
    if limit["cores_busy"] < BUSY * cores:
        return said + (
            f"decoding alone keeps but {limit['cores_busy']:.1f} cores busy; the disk, or other programs, are the limit: "
            "try RAMDataset, or a quieter machine."
        )
    if share >= NEAR:
        return said + "decoding is the limit; more cores or a smaller --size help."
    return said + "making batches and handing them over is the limit; other numbers of --workers or a larger --batch-size may help."
