"""`fastdata bench`: the Loader's speed on a store, compared with the limit of the machine and a hand-written loader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastdata.bench.harness import Run, interleave, summarize, table, tree_pss
from fastdata.bench.loaders import Contestant, decode_limit, find_task
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
    """Measure as `fastdata bench --help` says, and print a table, line by line, with `echo`.

    Returns:
        Plain values: store, settings and results (one dict per contestant, of which the first is the limit).

    Raises:
        StoreError: the store has no images, or masks but no labels.
        LoaderError: a contestant fails.
    """
    task, cores = find_task(os.fspath(store), size, crop, batch_size), available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    dataset = task.dataset()
    records = dataset._images.store.index(dataset._images.variant).lengths
    limit = Contestant(f"decode limit, {cores} bare processes", "limit", cores, partial(decode_limit, task, cores))
    contestants = [limit, *(Contestant.ours(task, dataset, count) for count in counts), Contestant.by_hand(task, cores)]
    if records.sum() < 0.5 * free_memory():  # a copy in memory is affordable
        in_memory = task.dataset(partial(RAMDataset, masks=False))
        contestants.append(Contestant.ours(task, in_memory, cores, "RAM"))
    image_bytes = float(records.mean())
    settings = {"crop": task.crop, "batch_size": task.batch_size, "seconds": seconds, "repeats": repeats}
    results = _results(contestants, seconds, repeats)
    for line in ["", *_lines(results, image_bytes)]:
        echo(line)
    about = {"name": Path(store).name, "images": len(dataset), "image_bytes": image_bytes}
    return {"store": about, "settings": settings, "results": results}


def _results(contestants: Sequence[Contestant], seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Let all contestants take turns. Each starts for its turn and ends after it, outside the timed region."""
    found = dict[str, dict[str, Any]]()
    bar = tqdm(total=len(contestants) * (repeats + 1), disable=None, leave=False)

    def measure(one: Contestant, seconds: float) -> Run:
        started = time.perf_counter()
        with one.start() as timed:
            first_ms = 1e3 * (time.perf_counter() - started)
            run, memory = timed(seconds), tree_pss()
        bar.update()
        found[one.name] = {"kind": one.kind, "workers": one.workers, "first_batch_ms": first_ms, "pss_bytes": memory}
        return run

    with bar:
        turns = interleave({one.name: partial(measure, one) for one in contestants}, seconds=seconds, repeats=repeats)
    return [{**row, **found[row["name"]]} for row in summarize(turns, contestants[0].name)]


def _lines(results: Sequence[Mapping[str, Any]], image_bytes: float) -> list[str]:
    """Return the table.

    Rates are shares of the limit in the same round, times the limit: clock rates and other programs change between rounds.
    """
    rows = []
    for row in results:
        ratio, memory = row["ratio"], row["pss_bytes"]
        images_per_s = ratio["median"] * results[0]["images_per_s"]["median"]
        cells = [row["name"], f"{ratio['median']:.2f}"]
        cells += ["" if row["kind"] == "limit" else f"{ratio['min']:.2f} - {ratio['max']:.2f}", f"{images_per_s:,.0f}"]
        cells += [f"{images_per_s * image_bytes / 1e6:.1f}", f"{row['cpu_ms_per_image']:.2f}", f"{row['first_batch_ms']:.0f}"]
        rows.append([*cells, "?" if memory is None else f"{memory / 1e6:,.0f}"])
    headers = ["", "of the limit", "min - max", "images/s", "MB/s in", "CPU ms/image", "first batch, ms", "memory, MB"]
    return table(headers, rows)
