"""Loads that find leaks: many batches, epochs and loaders, with flat memory, descriptors, threads and processes.

Each is given how much of it to do: 1.0 in a campaign, a small part in `make test-faults`.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import stores
from fastdata import LMDBDataset, Loader, RAMDataset, RandomCrop
from support import children, until

__all__ = ["LOADS"]

Load = Callable[[float], int]
LOADS: dict[str, Load] = {}
GROWTH = 12 << 20  # bytes of memory that may come on top after warming up: allocators keep some
PARTS = 4  # of a load: the first warms up


class Held(NamedTuple):
    """What a process holds."""

    memory: int
    descriptors: int
    threads: int
    processes: int


def held() -> Held:
    gc.collect()
    memory = int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    return Held(memory, len(os.listdir("/proc/self/fd")), threading.active_count(), len(children(os.getpid())))  # noqa: PTH208


def flat(part: Callable[[], None]) -> None:
    """Run something several times, after which the process must hold what it held after the first time."""
    part()
    before = held()
    for _ in range(PARTS - 1):
        part()
    end = time.monotonic() + 20
    while (now := held())[1:] > before[1:]:
        assert time.monotonic() < end, f"{before} became {now}"
        time.sleep(0.05)
    assert now.memory - before.memory < GROWTH, f"{before} became {now}"


def load(run: Load) -> Load:
    LOADS[run.__name__] = run
    return run


def made(dataset: Any = LMDBDataset, **options: Any) -> Loader:
    options = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 1, **options}
    return Loader(dataset(stores.square(), crop=RandomCrop(24)), **options)


def passes(loader: Loader, count: int) -> int:
    return sum(len(batch.ids) > 0 for _ in range(count) for batch in loader)


@load
def batches(size: float) -> int:
    """10,000 batches of one Loader with workers."""
    count, loader = int(10_000 * size), made()
    flat(lambda: passes(loader, count // PARTS // len(loader)) and None)
    loader.close()
    return count


@load
def epochs(size: float) -> int:
    """500 epochs from memory, without workers."""
    count, loader = int(500 * size), made(RAMDataset, num_workers=0)
    flat(lambda: passes(loader, count // PARTS) and None)
    return count


@load
def loaders(size: float) -> int:
    """200 loaders, some of which are left in the middle of a pass."""
    count = int(200 * size)

    def part() -> None:
        for k in range(count // PARTS):
            loader = made((LMDBDataset, RAMDataset)[k % 2], num_workers=k % 3)
            for _ in islice(loader, 3 if k % 4 else 100):
                pass
            loader.close()

    flat(part)
    return count


@load
def interleaved(size: float) -> int:
    """Two loaders in turn deliver what each delivers alone."""
    count = max(int(100 * size), 1)
    first, second = made(seed=1), made(RAMDataset, seed=2)
    alone = [[stores.sha(one) for one in (first, second)] for _ in range(2)]
    assert alone[0] != alone[1], "epochs differ"
    for _ in range(count):
        for one in (first, second):
            one.set_epoch(0)
        turns = list(zip(first, second, strict=True))
        assert [stores.sha(one) for one in zip(*turns, strict=True)] == alone[0], "another batch"
    first.close()
    second.close()
    return count


@load
def from_threads(size: float) -> int:
    """Datasets are read, and loaders used, from several threads."""
    count = max(int(40 * size), 2)
    dataset = LMDBDataset(stores.square())
    want = [dataset[k][0].numpy().tobytes() for k in range(len(dataset))]
    batches_of = stores.sha(made(num_workers=0))

    def work(k: int) -> None:
        assert [dataset[i][0].numpy().tobytes() for i in range(len(dataset))] == want, "another sample"
        assert stores.sha(made(num_workers=k % 2)) == batches_of, "another batch"

    def part() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(count // 2)))

    part()
    before = held()
    part()
    until(lambda: held()[1:] <= before[1:])
    return count


@load
def interrupts(size: float) -> int:
    """A Ctrl-C at any moment of a pass, as in a notebook; then the same Loader makes its batches again."""
    count, loader = max(int(200 * size), 4), made()
    loader.set_epoch(0)
    want = stores.sha(loader)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hits = 0
    try:
        for k in range(count):
            loader.set_epoch(0)
            timer = threading.Timer(0.0002 * (k % 50), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                for _ in loader:
                    pass
                timer.join()
                time.sleep(0.01)  # where the signal arrives if the pass was faster
            except KeyboardInterrupt:
                hits += 1
            timer.join()
            loader.set_epoch(0)
            assert stores.sha(loader) == want, f"after interrupt {k} the batches differ"
    finally:
        signal.signal(signal.SIGINT, before)
    loader.close()
    assert hits == count, f"{hits} of {count} interrupts were raised"
    return count
