"""`fastdata bench`: the Loader's speed on a store, compared with the limit of the machine and a hand-written loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from fastdata.bench.by_hand import by_hand
from fastdata.bench.harness import Run, interleave, machine, summarize, tree_pss
from fastdata.bench.loaders import Bare, Streamed, Task, find_task, loader
from fastdata.bench.report import describe, result_lines, verdict
from fastdata.data.opening import RAMDataset
from fastdata.system.machine import available_cores, free_memory

__all__ = ["run_bench"]


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
        batch_size: images per batch, at most those of the store; None: 64.
        workers: numbers of workers to try; empty: 0, the powers of two and the number of cores.
        seconds: length of one measurement.
        repeats: number of rounds, without the warm-up.

    Returns:
        Plain values: machine, store, settings, results (one dict per contestant) and verdict.

    Raises:
        StoreError: the store has no images, or masks but no labels.
        LoaderError: a contestant fails.
    """
    task = find_task(os.fspath(store), size, crop, batch_size)
    cores = available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    about = describe(task)
    ram = about["store_bytes"] < 0.5 * free_memory()  # a copy in memory is affordable
    results = _results(task, about["image_bytes"], counts, ram, seconds, repeats)
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
    task: Task, image_bytes: float, counts: Sequence[int], ram: bool, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Let all contestants take turns. Each starts for its turn and ends after it, outside the timed region.

    The best number of workers is used for the other variants of the Loader.
    """
    found = dict[str, dict[str, Any]]()
    steps = len(counts) + (2 + len(counts) + ram + torch.cuda.is_available()) * (repeats + 1)
    bar = tqdm(total=steps, disable=None, leave=False, bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed}")

    def measure(one: Bare | Streamed, seconds: float) -> Run:
        bar.set_description_str(one.name)
        try:
            first_ms, run, memory = one.start(), one.measure(seconds), tree_pss()
        finally:
            one.close()
            bar.update()
        found[one.name] = {"kind": one.kind, "workers": one.workers, "first_batch_ms": first_ms, "pss_bytes": memory}
        return run

    dataset, cores = task.dataset(), available_cores()
    loaders = [loader(task, dataset, count, image_bytes) for count in counts]
    runs = [measure(one, min(seconds, 1.0)) for one in loaders]
    best = max(zip(runs, counts, strict=True), key=lambda pair: pair[0].images / pair[0].seconds)[1]
    contestants: list[Bare | Streamed] = [Bare(task, cores, image_bytes), *loaders, by_hand(task, cores, image_bytes)]
    if torch.cuda.is_available():
        contestants.append(loader(task, dataset, best, image_bytes, pin_memory=True))
    if ram:
        contestants.append(loader(task, task.dataset(partial(RAMDataset, masks=False)), best, image_bytes))
    with bar:
        turns = interleave({one.name: partial(measure, one) for one in contestants}, seconds=seconds, repeats=repeats)
    return [{**row, **found[row["name"]]} for row in summarize(turns, contestants[0].name)]
