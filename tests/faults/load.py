"""Loads that find leaks: many batches, epochs and loaders, with flat memory, descriptors, threads and processes.

Each is given how much of it to do: a small part in `make test-faults`, more in `make nightly`. Those of stores in object storage
are in load_remote.py.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import corpora
import fastdata
import stores
from fastdata import LMDBDataset, Loader, RAMDataset, RandomCrop
from support import Array, children

Load = Callable[[float], None]
LOADS: dict[str, Load] = {}
CONNECTIONS = 4  # that the client of a fetcher may keep open, or not
GROWTH = 12 << 20  # bytes of memory that may come on top after warming up: allocators keep some
PARTS = 4  # of a load: the first warms up


def held(pid: int) -> Array:
    """The memory, descriptors, threads, and children, also those that it has not waited for, of a process."""
    memory = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()
    descriptors, threads = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))  # noqa: PTH208
    return np.array([memory, descriptors, threads, len(children(pid, zombies=True))])


def flat(part: Callable[[], None], others: Callable[[], list[int]] = list) -> None:
    """Run something several times, after which this process must hold what it held after the first time, and so must others, or
    those that took their place."""

    def look() -> list[Array]:
        gc.collect()
        return [held(pid) for pid in (os.getpid(), *others())]

    part()
    before = look()
    for _ in range(PARTS - 1):
        part()
    now, end = look(), time.monotonic() + 20
    most = [each + [GROWTH, CONNECTIONS if number else 0, 0, 0] for number, each in enumerate(before)]
    while len(now) > len(most) or any((found > limit).any() for found, limit in zip(now, most, strict=False)):
        assert time.monotonic() < end, f"{before} became {now}"
        time.sleep(0.05)
        now = look()


def load(run: Load) -> Load:
    LOADS[run.__name__] = run
    return run


def made(dataset: Any = LMDBDataset, **options: Any) -> Loader:
    options = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 1, **options}
    return Loader(dataset(stores.square(), crop=RandomCrop(24)), **options)


def passes(loader: Any, count: int) -> int:
    return sum(len(batch) > 0 for _ in range(count) for batch in loader)


@load
def loaders(size: float) -> None:
    """200 loaders, some of which are left in the middle of a pass, while one with workers makes pass after pass."""
    count, lasting = int(200 * size), made()

    def part() -> None:
        for k in range(count // PARTS):
            loader = made((LMDBDataset, RAMDataset)[k % 2], num_workers=k % 3)
            for _ in islice(loader, 3 if k % 4 else 100):
                pass
            loader.close()
            passes(lasting, 1)

    flat(part)
    lasting.close()


WAYS = (("random", "join"), ("sequential", "join"), ("sequential", "mask"), ("sequential", "align"), ("document", "join"))


@load
def epochs(size: float) -> None:
    """2,000 epochs of tokens in each of their ways, of images and of arrays, from the disk and from memory, and with workers."""
    count = int(2000 * size)
    ways = [(corpora.store(), {"block_size": 64, "mode": mode, "documents": documents_}) for mode, documents_ in WAYS]
    ways += [(stores.square(), {"crop": RandomCrop(24)}), (stores.masked_arrays(), {"crop": RandomCrop((8, 8, 8)), "flips": 0.5})]
    datasets = [make(path, **way) for path, way in ways for make in (fastdata.open, RAMDataset)]
    loaders = [Loader(dataset, 16, shuffle=True, seed=1, num_workers=0) for dataset in datasets]

    def part() -> None:
        for loader in loaders:
            passes(loader, count // PARTS // 2)
        workers = DataLoader(datasets[0], 16, shuffle=True, num_workers=2, persistent_workers=True)
        passes(workers, max(count // PARTS // 20, 1))

    flat(part)


@load
def from_threads(size: float) -> None:
    """Datasets are read, and loaders used, from several threads."""
    count = int(40 * size)
    dataset = LMDBDataset(stores.square())
    want = [dataset[k][0].numpy().tobytes() for k in range(len(dataset))]
    batches_of = stores.sha(made(num_workers=0))

    def work(k: int) -> None:
        assert [dataset[i][0].numpy().tobytes() for i in range(len(dataset))] == want, "another sample"
        assert stores.sha(made(num_workers=k % 2)) == batches_of, "another batch"

    def part() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(max(count // PARTS, 2))))

    flat(part)


@load
def interrupts(size: float) -> None:
    """200 times a Ctrl-C at any moment of a pass, as in a notebook; then the same Loader makes its batches again."""
    count, loader = max(int(200 * size), 4), made()
    loader.set_epoch(0)
    want = stores.sha(loader)
    before, hook = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    hits, dropped = 0, list[Any]()  # dropped: Python raised them in a finalizer, out of which no exception comes
    sys.unraisablehook = lambda found: dropped.append(found.exc_type)
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
        sys.unraisablehook = hook
    assert set(dropped) <= {KeyboardInterrupt} and hits + len(dropped) == count, f"{hits} of {count} were raised, {dropped} not"
    loader.close()
