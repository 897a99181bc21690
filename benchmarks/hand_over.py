"""What handing a batch over costs: CPU time of a batch in bare code, and in the two processes of a Loader with one worker.

python benchmarks/hand_over.py STORE [--crop 224] [--batches 60] [--rounds 7]

Bare code runs in the main process, and takes turns with the Loader. Times are microseconds of a batch of 64, medians of the rounds:
of each process, its main thread, and the other threads, which are those of torch's queues. CPU time, unlike the rate, says
something on a machine that others use, too; but what one process does to the caches of the other is part of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import torch

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.bench.harness import settle

BATCH, LEAST = 64, 6_400  # samples of a batch, and at least in an epoch


def thread_times(pid: int) -> tuple[float, float]:
    """Microseconds of CPU time that a process has used: its main thread, and its other threads."""
    times = {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e3 for task in Path(f"/proc/{pid}/task").iterdir()}
    return times[pid], sum(times.values()) - times[pid]


def endless(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    dataset = LMDBDataset(options.store, crop=RandomResizedCrop(options.crop))
    dataset = dataset.subset(np.tile(np.arange(len(dataset)), -(-LEAST // len(dataset))))
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, len(dataset), BATCH) for _ in range(options.batches)]
    found: dict[str, list[float]] = {}
    with Loader(dataset, BATCH, shuffle=True, num_workers=1, drop_last=True) as loader:
        batches = endless(loader)
        next(batches)
        (worker,) = psutil.Process().children()
        for number in range(-1, options.rounds):
            settle()
            started = time.process_time()
            for indices in rows:
                dataset.read_batch(indices, seed=0, epoch=0)
            times = {"bare": 1e6 * (time.process_time() - started)}
            processes = {"consumer": os.getpid(), "worker": worker.pid}
            before = {name: thread_times(pid) for name, pid in processes.items()}
            for _ in itertools.islice(batches, options.batches):
                pass
            settle()  # the worker has as many batches ahead as before
            for name, pid in processes.items():
                own, others = (after - first for after, first in zip(thread_times(pid), before[name], strict=True))
                times |= {name: own, f"{name}'s other threads": others}
            times["both / bare"] = (sum(times.values()) - times["bare"]) / times["bare"] * options.batches
            for name, value in times.items() if number >= 0 else ():
                found.setdefault(name, []).append(value / options.batches)
    for name, values in found.items():
        print(f"{name:26s} {statistics.median(values):10,.2f}  ({min(values):,.2f} to {max(values):,.2f})")


if __name__ == "__main__":
    main()
