"""`fastdata bench`: the Loader's speed on a store, compared with the limit of the machine and a hand-written loader."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastdata.bench.harness import machine, summarize
from fastdata.bench.loaders import Task
from fastdata.bench.plot import draw
from fastdata.bench.report import byte_lines, describe, plan_line, result_lines, verdict
from fastdata.bench.trial import Trial
from fastdata.data.opening import described
from fastdata.errors import StoreError, needs
from fastdata.images.records import StoreImages
from fastdata.machine import available_cores, free_memory
from fastdata.store.format import read_current

__all__ = ["run_bench"]

CROP = 224  # default side; less if the images are smaller
BATCH = 64  # default batch size; less if there are fewer images


def run_bench(
    store: str | os.PathLike[str],
    *,
    echo: Callable[[str], object] = print,
    size: int | None = None,
    crop: int | None = None,
    batch_size: int | None = None,
    workers: Sequence[int] = (),
    seconds: float = 3.0,
    repeats: int = 5,
    plot: str | os.PathLike[str] | None = None,
    limit: float = 120.0,
) -> dict[str, Any]:
    """Measure, print a table, and name the bottleneck.

    Args:
        store: path of a store of images.
        echo: called with each line of output.
        size: stored size; None: the largest.
        crop: side of the random crops in pixels; None: 224, or the shorter side of the store's median image if that is less.
        batch_size: images per batch; None: 64, or all if the store has fewer.
        workers: numbers of workers to try; empty: 0, the powers of two and the number of cores.
        seconds: length of one measurement.
        repeats: number of rounds, without the warm-up.
        plot: path of a PNG chart of the result.
        limit: seconds after which a contestant that does not answer is ended; the others continue.

    Returns:
        Plain values: machine, store, settings, results (one dict per contestant), failed (reason by name) and verdict.

    Raises:
        ValueError: an argument is not positive, larger than the store, or does not fit into memory.
        StoreError: the store has no images, or masks but no labels.
        LoaderError: contestants deliver different batches, or no Loader delivers anything.
        MissingExtraError: `plot` needs matplotlib, which is not installed.
    """
    _positive(**{"crop": crop, "batch-size": batch_size, "seconds": seconds, "repeats": repeats, "limit": limit})
    if min(workers, default=0) < 0:
        raise ValueError(f"--workers is {min(workers)}, but must not be negative")
    if plot is not None:
        with needs("matplotlib"):  # fail now, not after minutes of measuring
            import matplotlib  # noqa: F401
        if not Path(plot).absolute().parent.is_dir():
            raise ValueError(f"--plot is {os.fspath(plot)!r}, but its folder does not exist: make it first")
    task = _task(os.fspath(store), size, crop, batch_size)
    cores = available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    about = describe(task)
    most = max(cores, *counts)
    if (need := most * about["worker_bytes"]) > free_memory():
        fewer = ", or fewer --workers" * (most > cores)
        raise ValueError(
            f"--crop {task.crop} and --batch-size {task.batch_size} take {need / 1e6:,.0f} MB in {most} processes, but "
            f"{free_memory() / 1e6:,.0f} MB are free: choose a smaller --crop or --batch-size{fewer}"
        )
    ram = about["store_bytes"] < 0.5 * free_memory()  # a copy in memory is affordable
    for line in byte_lines(about, counts, ram):
        echo(line)
    number = 2 + len(counts) + ram + torch.cuda.is_available()
    echo(plan_line(number, seconds, repeats))
    with Trial(task, about, seconds, limit, total=number * (repeats + 2)) as trial:
        reference = trial.enter(counts, ram)
        results = summarize(trial.rounds(repeats), reference)
    results = [{**row, **trial.found[row["name"]]} for row in results]
    settings = {"crop": task.crop, "batch_size": task.batch_size, "seconds": seconds, "repeats": repeats}
    result: dict[str, Any] = {
        "machine": machine(),
        "store": about,
        "settings": settings,
        "results": results,
        "failed": trial.failed,
        "verdict": verdict(results, cores),
    }
    for line in ["", *result_lines(result), "", result["verdict"]]:
        echo(line)
    if plot is not None:
        draw(result, plot)
        echo(f"drawn in {os.fspath(plot)}")
    return result


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"--{name} is {value}, but must be positive")


def _task(path: str, size: int | None, crop: int | None, batch_size: int | None) -> Task:
    """Return the task of each contestant, with defaults that fit the images."""
    manifest = read_current(Path(path))[1]
    if manifest.kind != "images" or (manifest.section("masks") and manifest.labels.kind == "none"):
        raise StoreError(f"bench measures stores of images without masks, not {described(path, manifest)}")
    images = StoreImages(path, size)
    if not len(images):
        raise StoreError(f"{path} has no images to measure with")
    if batch_size is not None and batch_size > len(images):
        raise ValueError(f"--batch-size is {batch_size}, but {path} has {len(images)} images: choose a smaller --batch-size")
    if crop is None:
        heights, widths = images.sides(np.arange(len(images)))
        side = int(np.median(np.minimum(heights, widths)))
        crop = min(CROP, side)
    return Task(path, size, crop, batch_size or min(BATCH, len(images)))
