"""Processes or threads: the Loader beside threads of one process that fill the same slots, over several numbers of workers.

python benchmarks/engines.py STORE [--workers 1 --workers 2 ...] [--seconds 3] [--rounds 5]

RandomResizedCrop(224) and a flip, batches of 64, shuffled. Threads do what a worker does (`read_batch` into a slot), one batch a
task, with no queue between processes, no pickling and no forks; what they share is the interpreter's lock. Contestants take turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import torch

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.loader.order import EpochOrder
from fastdata.loader.slots import Slots, Span
from fastdata.system.machine import available_cores

BATCH, AHEAD = 64, 2


def threads(dataset: Any, workers: int) -> Iterator[torch.Tensor]:
    """Batches in order, made ahead by threads."""
    slots = Slots(AHEAD * workers, BATCH * dataset.sample_bytes())
    order = EpochOrder(len(dataset), 0, shuffle=True)
    starts = ((epoch, start) for epoch in itertools.count() for start in range(0, len(dataset) - BATCH + 1, BATCH))

    def make(epoch: int, start: int, slot: int) -> tuple[int, Any]:
        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
            return slots.place.array(slot, Span(0, shape, dtype))

        indices = order.at(epoch, np.arange(start, start + BATCH))
        images, _ = dataset.read_batch(indices, seed=0, epoch=epoch, allocate=allocate)
        return slot, images

    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[int, Any]]] = deque()
        while True:
            while len(waiting) < AHEAD * workers:
                waiting.append(pool.submit(make, *next(starts), slots.take()))
            slot, images = waiting.popleft().result()
            yield slots.hand_out(slot, [Span(0, images.shape, images.dtype)])[0].permute(0, 3, 1, 2)


def processes(dataset: Any, workers: int) -> Iterator[torch.Tensor]:
    with Loader(dataset, BATCH, shuffle=True, num_workers=workers, drop_last=True) as loader:
        while True:
            yield from (images for images, _ in loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cores = available_cores()
    counts = options.workers or sorted({1, cores, *(n for n in (2, 4, 8, 16, 32, 64) if n < cores)})
    torch.set_num_threads(1)
    dataset = LMDBDataset(options.store, crop=RandomResizedCrop(224), hflip=0.5)
    contestants = {(engine.__name__, n): engine(dataset, n) for n in counts for engine in (processes, threads)}
    cv2.setNumThreads(1)
    for batches in contestants.values():  # all workers live before the first is measured
        next(batches)
    rounds: dict[tuple[str, int], list[float]] = {key: [] for key in contestants}
    for _ in range(options.rounds + 1):
        for key, batches in contestants.items():
            for _ in range((AHEAD + 1) * key[1]):  # what lies ready was made before
                next(batches)
            images, started = 0, time.perf_counter()
            while time.perf_counter() - started < options.seconds:
                images += len(next(batches))
            rounds[key].append(images / (time.perf_counter() - started))
    for key, found in rounds.items():
        print(f"{key[1]:3} {key[0]:9} {statistics.median(found[1:]):8.0f} images/s ({min(found[1:]):.0f} - {max(found[1:]):.0f})")


if __name__ == "__main__":
    main()
