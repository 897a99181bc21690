"""`fastdata bench`: the Loader's speed on a store, compared with the limit of the machine and a hand-written loader."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fastdata.bench.by_hand import by_hand
from fastdata.bench.harness import Measure, Run, interleave, machine, summarize, tree_pss
from fastdata.bench.loaders import Bare, Streamed, Task, loader
from fastdata.bench.report import byte_lines, describe, plan_line, result_lines, verdict
from fastdata.data.opening import RAMDataset, described
from fastdata.errors import StoreError
from fastdata.images.records import StoreImages
from fastdata.store.format import read_current
from fastdata.system.machine import available_cores, free_memory

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

    Returns:
        Plain values: machine, store, settings, results (one dict per contestant) and verdict.

    Raises:
        ValueError: `batch_size` is larger than the store.
        StoreError: the store has no images, or masks but no labels.
        LoaderError: a contestant fails.
    """
    task = _task(os.fspath(store), size, crop, batch_size)
    cores = available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    about = describe(task)
    ram = about["store_bytes"] < 0.5 * free_memory()  # a copy in memory is affordable
    for line in byte_lines(about, counts, ram):
        echo(line)
    number = 2 + len(counts) + ram + torch.cuda.is_available()
    echo(plan_line(number, seconds, repeats))
    results = _results(task, about, counts, ram, seconds, repeats, number * (repeats + 2))
    settings = {"crop": task.crop, "batch_size": task.batch_size, "seconds": seconds, "repeats": repeats}
    result: dict[str, Any] = {
        "machine": machine(),
        "store": about,
        "settings": settings,
        "results": results,
        "verdict": verdict(results, cores),
    }
    for line in ["", *result_lines(result), "", result["verdict"]]:
        echo(line)
    return result


def _results(
    task: Task, about: dict[str, Any], counts: Sequence[int], ram: bool, seconds: float, repeats: int, steps: int
) -> list[dict[str, Any]]:
    """Let each contestant run alone once, to measure its memory and its first batch, and then let all take turns.

    The best number of workers is used for the other variants of the Loader. If the processes of all do not fit into memory at once,
    each restarts for its turn, outside the timed region.
    """
    contestants, found, rates = list[Bare | Streamed](), dict[str, dict[str, Any]](), dict[int, float]()
    bar = tqdm(total=steps, disable=None, leave=False, bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed}")

    def step(one: Bare | Streamed) -> None:
        bar.set_description_str(one.name)
        bar.update()

    def enter(one: Bare | Streamed) -> Run:
        step(one)
        contestants.append(one)
        first_ms, run = one.start(), one.measure(min(seconds, 1.0))
        found[one.name] = {"kind": one.kind, "workers": one.workers, "first_batch_ms": first_ms, "pss_bytes": tree_pss()}
        one.close()
        return run

    def turn(one: Bare | Streamed, keep: bool) -> Measure:
        def measure(seconds: float) -> Run:
            step(one)
            run = one.measure(seconds)
            if not keep:
                one.close()
            return run

        return measure

    dataset, size, cores = task.dataset(), about["image_bytes"], available_cores()
    try:
        enter(Bare(task, cores, size))
        for count in counts:
            run = enter(loader(task, dataset, count, size))
            rates[count] = run.images / run.seconds
        best = max(rates, key=lambda count: rates[count])
        enter(by_hand(task, cores, size))
        if torch.cuda.is_available():
            enter(loader(task, dataset, best, size, pin_memory=True))
        if ram:
            enter(loader(task, task.dataset(partial(RAMDataset, masks=False)), best, size))
        need = sum(one.workers for one in contestants) * about["worker_bytes"]
        keep = need < 0.5 * free_memory() and need < 0.8 * shutil.disk_usage("/dev/shm").free
        runs = interleave({one.name: turn(one, keep) for one in contestants}, seconds=seconds, repeats=repeats)
    finally:
        for one in contestants:
            one.close()
        bar.close()
    return [{**row, **found[row["name"]]} for row in summarize(runs, contestants[0].name)]


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
