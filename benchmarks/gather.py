"""Ways to copy 64 random rows of 1,025 tokens out of a gigabyte: microseconds a batch, on idle and on busy cores.

python benchmarks/gather.py [--busy 2]

Behind RowCopier of fastdata.data.token_memory. Busy: so many other processes that never rest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastdata.bench.harness import machine
from fastdata.data.token_memory import RowCopier

Array = np.ndarray[Any, np.dtype[Any]]
COUNT, BATCH, WIDTH, BATCHES, ROUNDS = 500_000_000, 64, 1025, 500, 5


def spin() -> None:
    while True:
        pass


def loop(data: Array, starts: Array) -> Array:
    rows = np.empty((len(starts), WIDTH), data.dtype)
    for k, start in enumerate(starts.tolist()):
        rows[k] = data[start : start + WIDTH]
    return rows


def ways(data: Array) -> dict[str, tuple[int, Callable[[Array], Any]]]:
    """Name, torch's threads, and the copy."""
    windows = np.lib.stride_tricks.sliding_window_view(data, WIDTH)
    view, copier = torch.from_numpy(data).as_strided(windows.shape, (1, 1)), RowCopier()
    select = lambda starts: torch.index_select(view, 0, torch.from_numpy(starts))  # noqa: E731
    return {
        "a loop of numpy slices": (1, lambda starts: loop(data, starts)),
        "numpy, windows[starts]": (1, lambda starts: windows[starts]),
        "torch.index_select, one thread": (1, select),
        "torch.index_select, two threads": (2, select),
        "RowCopier, two threads allowed": (2, lambda starts: copier(view, torch.from_numpy(starts), pin=False)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    data = np.arange(COUNT, dtype=np.uint32).astype(np.uint16)
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, COUNT - WIDTH, BATCH) for _ in range(BATCHES)]
    for busy in (0, given.busy):
        others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(busy)]
        for other in others:
            other.start()
        taken: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, (threads, copy) in ways(data).items():
                torch.set_num_threads(threads)
                assert np.array_equal(np.asarray(copy(batches[0])), loop(data, batches[0]))
                started = time.perf_counter()
                for starts in batches:
                    copy(starts)
                taken.setdefault(name, []).append((time.perf_counter() - started) / BATCHES * 1e6)
        for other in others:
            other.kill()
            other.join()
        print(
            f"{busy} busy processes: " + ", ".join(f"{name} {statistics.median(t):.0f} us" for name, t in taken.items()), flush=True
        )
    print(f"{machine()['cpu']}, {machine()['cores']} cores")


if __name__ == "__main__":
    main()
