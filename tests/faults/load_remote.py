"""Loads of stores in object storage: this process, and the one that fetches for it, hold what they held. They need obstore."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import corpora
import fastdata
import stores
from fastdata import LMDBDataset, Loader, RAMDataset, RandomCrop
from fastdata.errors import StoreError
from load import PARTS, flat, load, passes
from support import downloaders, until

SERVER = Path(__file__).parents[1] / "scale/faults.py"


def small_shards() -> Path:
    """A store of 42 images in 21 shards."""
    return stores.store("rgb", size=32, resize="crop", shard_samples=2)


class Remote:
    """Stores on a server, and a folder for a cache of them."""

    def __init__(self, endpoint: str, root: Path) -> None:
        self.endpoint = endpoint
        self.root = root
        self.cache = root / "cache"

    def url(self, number: int = 0) -> str:
        return f"{self.endpoint}/bucket/{number}.fds"

    @cached_property
    def least(self) -> int:
        """The smallest cache that a Loader of the first store takes: the error about a smaller one names it."""

        try:
            next(iter(self.loader(LMDBDataset(self.url(), cache=self.root / "small", cache_size=1))))
        except StoreError as error:
            return int(re.findall(r"cache_size=(\d+)", str(error))[0])
        raise AssertionError("a cache of one byte is enough")

    def images(self) -> Any:
        return LMDBDataset(self.url(), cache=self.cache, cache_size=self.least, crop=RandomCrop(24))

    def loader(self, dataset: Any = None, **options: Any) -> Loader:
        options = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 1, **options}
        return Loader(self.images() if dataset is None else dataset, **options)

    def used(self) -> int:
        """The bytes of the shards in the cache."""
        total = 0
        for path in self.cache.glob("*/*/shard-*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total


@contextmanager
def remote(*published: Path, rate: int = 0) -> Iterator[Remote]:
    """Publish stores on a server of its own. rate: bytes a second of each connection; 0: as fast as possible."""
    root = stores.folder()
    for number, store in enumerate(published):
        fastdata.publish(store, f"file://{root}/bucket/{number}.fds")
    command = [sys.executable, str(SERVER), str(root), "0", str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield Remote(f"http://127.0.0.1:{server.stdout.readline().strip()}", root)


@load
def remote_epochs(size: float) -> None:
    """200 epochs through the least cache; then the batches are those of the store on a disk."""
    count = int(200 * size)
    with remote(small_shards()) as store, store.loader() as loader:

        def part() -> None:
            passes(loader, count // PARTS)
            assert store.used() <= store.least, "more in the cache than it may hold"

        flat(part, lambda: downloaders(store.cache))
        local = store.loader(LMDBDataset(small_shards(), crop=RandomCrop(24)), order="interleaved")
        for one in (loader, local):
            one.set_epoch(7)
        assert stores.sha(loader) == stores.sha(local), "other batches"
        local.close()
        until(lambda: not [*store.cache.glob("*/*/*.tmp")])


@load
def remote_loaders(size: float) -> None:
    """200 Loaders of stores of three kinds, from a cache and in memory. Some are left in the middle of a pass, and some lose their
    downloader there."""
    count = int(200 * size)
    published = [small_shards(), corpora.store(), stores.masked_arrays()]
    options = [{"crop": RandomCrop(24)}, {"block_size": 64}, {"crop": RandomCrop((8, 8, 8))}]
    with remote(*published) as store:

        def part() -> None:
            for k in range(count // PARTS):
                url, chosen = store.url(k % 3), options[k % 3]
                dataset = (RAMDataset if k % 6 < 3 else fastdata.open)(url, cache=store.cache, **chosen)
                with store.loader(dataset, num_workers=k % 3) as loader:
                    for _ in islice(loader, 3 if k % 5 else 100):
                        for pid in downloaders(store.cache) if k % 5 == 4 else ():
                            os.kill(pid, signal.SIGTERM)

        flat(part, lambda: downloaders(store.cache))
