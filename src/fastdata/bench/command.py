"""`fastdata bench`: what the loader reaches on a store, beside the limit of the machine and a loader written by hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from fastdata.bench.by_hand import by_hand
from fastdata.bench.harness import Measure, Run, interleave, machine, summarize, tree_pss, write_json
from fastdata.bench.loaders import Bare, Check, Contestant, Task, agree, loader
from fastdata.bench.plot import draw, require_matplotlib
from fastdata.bench.report import bottleneck, byte_lines, describe, result_lines
from fastdata.data.ram import RAMDataset
from fastdata.machine import available_cores, free_memory

__all__ = ["run_bench"]


def run_bench(
    store: str | os.PathLike[str],
    *,
    echo: Callable[[str], object] = print,
    size: int | None = None,
    crop: int = 224,
    batch_size: int = 64,
    workers: Sequence[int] = (),
    seconds: float = 3.0,
    repeats: int = 5,
    json_path: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Measure, print a table, and name the bottleneck.

    Args:
        store: made by `fastdata-prep`.
        echo: prints a line.
        size: stored size; None: the largest.
        crop: pixels a side of the random crops.
        batch_size: images.
        workers: numbers of workers to try; empty: 0, the powers of two and the number of cores.
        seconds: of one measurement.
        repeats: rounds that count.
        json_path, plot: where to write the result, and a chart of it.

    Raises:
        ValueError: an argument is not positive.
        StoreError: the store has no images.
        LoaderError: a contestant delivers something else than the others.
        MissingExtraError: `plot` without matplotlib.
    """
    for name, value in {"crop": crop, "batch_size": batch_size, "seconds": seconds, "repeats": repeats}.items():
        if value <= 0:
            raise ValueError(f"{name} is {value}, but must be positive")
    if min(workers, default=0) < 0:
        raise ValueError(f"workers is {min(workers)}, but must not be negative")
    if plot is not None:
        require_matplotlib()  # now, and not after minutes
    task, cores = Task(os.fspath(store), size, crop, batch_size), available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    about = describe(task)
    ram = about["store_bytes"] < 0.5 * free_memory()  # a copy in memory is affordable
    for said in byte_lines(about, counts, ram):
        echo(said)
    with ExitStack() as stack:
        contestants, found = _tried(task, about, counts, ram, seconds, stack)
        need = sum(c.workers for c in contestants) * about["worker_bytes"]
        keep = need < 0.5 * free_memory() and need < 0.8 * shutil.disk_usage("/dev/shm").free
        echo(f"measuring: {len(contestants)} contestants, {repeats + 1} rounds (the first is not counted), {seconds:g} s each")
        measures = {c.name: c.measure if keep else _once(c) for c in contestants}
        results = summarize(interleave(measures, seconds=seconds, repeats=repeats), reference=contestants[0].name)
    results = [{**row, **found[row["name"]]} for row in results]
    settings = {"crop": crop, "batch_size": batch_size, "seconds": seconds, "repeats": repeats}
    found_out = bottleneck(results, cores)
    result = {"machine": machine(), "store": about, "settings": settings, "results": results, "bottleneck": found_out}
    for line in ["", *result_lines(results), "", found_out]:
        echo(line)
    if json_path is not None:
        write_json(json_path, result)
    if plot is not None:
        draw(result, plot)
    return result


def _tried(
    task: Task, about: dict[str, Any], counts: Sequence[int], ram: bool, seconds: float, stack: ExitStack
) -> tuple[list[Contestant], dict[str, dict[str, Any]]]:
    """Make the contestants and let each run alone once: that shows its memory, its first batch, and whether it delivers what
    it should. The number of workers that does best then is used for what is compared with it."""
    size, cores, dataset = about["image_bytes"], available_cores(), task.dataset()
    found: dict[str, dict[str, Any]] = {}
    checks: dict[str, Check] = {}
    rates: dict[str, float] = {}

    def attempt(contestant: Contestant) -> Contestant:
        stack.callback(contestant.close)
        first_ms = contestant.start()
        check = contestant.check(max(2 * seconds, 1.0))
        run = contestant.measure(min(seconds, 1.0))
        found[contestant.name] = {
            "kind": contestant.kind,
            "workers": contestant.workers,
            "first_batch_ms": first_ms,
            "pss_bytes": tree_pss(),
            "images_checked": len(check.means),
            "whole_pass_checked": check.complete,
        }
        checks[contestant.name], rates[contestant.name] = check, run.images / run.seconds
        contestant.close()
        return contestant

    contestants: list[Contestant] = [attempt(Bare(task, cores, size))]
    ours = [attempt(loader(task, dataset, count, size)) for count in counts]
    best = max(ours, key=lambda contestant: rates[contestant.name]).workers
    contestants += [*ours, attempt(by_hand(task, cores, size))]
    if torch.cuda.is_available():
        contestants.append(attempt(loader(task, dataset, best, size, pin_memory=True)))
    if ram:
        contestants.append(attempt(loader(task, task.dataset(partial(RAMDataset, masks=False)), best, size)))
    agree(checks)
    return contestants, found


def _once(contestant: Contestant) -> Measure:
    """Where the processes of all contestants don't fit at once: start them anew, outside the timed region."""

    def measure(seconds: float) -> Run:
        try:
            return contestant.measure(seconds)
        finally:
            contestant.close()

    return measure
