"""Ways to copy random rows of 1,025 tokens out of a gigabyte: microseconds for 64 rows, on idle and on busy cores.

python benchmarks/gather.py [--busy 2] [--rows 256]

Behind RowCopier of fastdata.text.memory. Busy: so many other processes that never rest.
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
from fastdata.text.memory import RowCopier

Array = np.ndarray[Any, np.dtype[Any]]
COUNT, WIDTH, ROWS, ROUNDS = 500_000_000, 1025, 32_000, 5


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
    view, copier = torch.from_numpy(data).as_strided(windows.shape, (1, 1)), RowCopier(data, WIDTH)
    whole = np.ndarray(len(windows), f"V{2 * WIDTH}", data, strides=data.strides)
    select = lambda starts: torch.index_select(view, 0, torch.from_numpy(starts))  # noqa: E731

    def touched(starts: Array) -> Any:
        data.take(starts)
        return select(starts)

    return {
        "a loop of numpy slices": (1, lambda starts: loop(data, starts)),
        "numpy, windows[starts]": (1, lambda starts: windows[starts]),
        "numpy, a row as one element": (1, lambda starts: whole[starts].view(data.dtype).reshape(-1, WIDTH)),
        "torch.index_select, one thread": (1, select),
        "the same, after a touch of each row": (1, touched),
        "torch.index_select, two threads": (2, select),
        "the same, after a touch of each": (2, touched),
        "RowCopier, two threads allowed": (2, lambda starts: copier(starts, pin=False)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--rows", type=int, default=256, help="that are copied at once")
    given = parser.parse_args()
    data = np.arange(COUNT, dtype=np.uint32).astype(np.uint16)
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, COUNT - WIDTH, given.rows) for _ in range(ROWS // given.rows)]
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
                taken.setdefault(name, []).append((time.perf_counter() - started) / len(batches) / given.rows * 64e6)
        for other in others:
            other.kill()
            other.join()
        print(
            f"{busy} busy processes: " + ", ".join(f"{name} {statistics.median(t):.0f} us" for name, t in taken.items()), flush=True
        )
    print(f"{machine()['cpu']}, {machine()['cores']} cores")


if __name__ == "__main__":
    main()
