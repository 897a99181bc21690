"""Fair comparison of contestants that take turns: other programs, clock rates and caches change over minutes, so each round gives
a ratio, and the median of the rounds is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any, NamedTuple, TypeVar

import psutil
from torch.utils.data import DataLoader

from fastdata.errors import FastDataError
from fastdata.loader.loader import Loader
from fastdata.system.torch_private import end_kept_workers


class Run(NamedTuple):
    """One measurement. seconds: wall clock; cpu_s: CPU time of all processes involved."""

    images: int
    seconds: float
    cpu_s: float


Measure = Callable[[float], Run]
Key = TypeVar("Key")


def interleave(contestants: Mapping[Key, Measure], *, seconds: float, repeats: int, warmup: int = 1) -> dict[Key, list[Run]]:
    """Let each contestant measure itself for `seconds` once a round, and return its runs of the last `repeats` rounds.

    The `warmup` rounds before these fill caches and allocate memory.
    """
    runs: dict[Key, list[Run]] = {name: [] for name in contestants}
    for number in range(-warmup, repeats):
        for name in runs:
            settle()
            run = contestants[name](seconds)
            if number >= 0:
                runs[name].append(run)
    return runs


@contextmanager
def running(loader: Any) -> Iterator[Iterator[Any]]:
    """Yield the batches of a loader, pass after pass; end its workers afterwards."""

    def endless() -> Generator[Any]:
        while True:
            batches = 0
            for batch in loader:
                batches += 1
                yield batch
                del batch  # or its memory could not be used for the next
            if not batches:
                raise FastDataError(f"a pass over {type(loader).__name__} yields no batches, so there is nothing to measure")

    batches = endless()
    try:
        yield batches
    finally:
        batches.close()
        if isinstance(loader, Loader):
            loader.close()
        elif isinstance(loader, DataLoader):
            end_kept_workers(loader)


def stream(batches: Iterator[int], ahead: int, seconds: float) -> Run:
    """Measure an iterator without end, which yields the number of samples of each batch. The first `ahead` batches do not count,
    since they may be ready before the clock starts."""
    for _ in range(ahead):
        next(batches)
    samples, cpu, started = 0, tree_cpu_s(tree()), time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not samples:
        samples += next(batches)
    return Run(samples, elapsed, tree_cpu_s(tree()) - cpu)


def summarize(runs: Mapping[str, Sequence[Run]], reference: str) -> list[dict[str, Any]]:
    """Return one plain dict per contestant: rates, cost, and the ratio of its rate to that of `reference` in the same round."""

    def spread(values: Sequence[float]) -> dict[str, Any]:
        return {"median": median(values), "min": min(values), "max": max(values), "rounds": list(values)}

    base = [run.images / run.seconds for run in runs[reference]]
    return [
        {
            "name": name,
            "images_per_s": spread([run.images / run.seconds for run in done]),
            "ratio": spread([run.images / run.seconds / other for run, other in zip(done, base, strict=True)]),
            "cpu_ms_per_image": median(1e3 * run.cpu_s / run.images for run in done),
        }
        for name, done in runs.items()
    ]


def tree(root: int | None = None) -> list[psutil.Process]:
    """Return a process, by default this one, and all its descendants; empty if it is gone."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds, in steps of 1/100 s, of processes and their ended children."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and the same of children
    return total


def settle() -> None:
    """Wait, at most 5 s, until the descendants of this process are idle: prefetching by one contestant must not slow the next."""
    end, before = time.monotonic() + 5, -1.0
    while (now := tree_cpu_s(tree()[1:])) != before and time.monotonic() < end:
        before = now
        time.sleep(0.03)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table that is also readable in a terminal: names on the left, numbers on the right."""
    widths = [max(len(line[k]) for line in (headers, *rows)) for k in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])} |"

    rule = "|" + "|".join("-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths)) + "|"
    return [line(headers), rule, *map(line, rows)]
