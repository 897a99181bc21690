"""Contestants of `fastdata bench`, which do the same work on one memory-mapped store: RandomResizedCrop and a flip.

the decode limit    processes that run the dataset's own code on their share; nothing is shuffled, only counts are handed over
Loader              fastdata's Loader, from disk and from memory, with several numbers of workers
DataLoader          torch's DataLoader over the same dataset, from disk
"""

from __future__ import annotations

import io
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from tqdm import tqdm

from fastdata.bench.harness import Measure, Run, interleave, running, stream, summarize, table
from fastdata.data.opening import RAMDataset
from fastdata.errors import FastDataError, StoreError
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.dataset import LMDBDataset
from fastdata.images.records import StoreImages
from fastdata.loader.fetch import quiet_worker
from fastdata.loader.loader import Loader
from fastdata.sources.base import read_source
from fastdata.sources.inputs import SplitsError
from fastdata.sources.listing import list_sources
from fastdata.store.manifest import read_current
from fastdata.system.machine import available_cores, free_memory
from fastdata.types import StrPath
from fastdata.words import number_of

HFLIP = 0.5
NORMAL = 0.45, 0.225  # mean and standard deviation of colours, about
CROP, BATCH = 224, 64  # defaults; less if the images are smaller, or fewer
AHEAD = 2  # batches that each worker makes ahead: torch's default, and ours


@dataclass(frozen=True)
class Workload:
    """The work of every contestant, on the first image of each sample. size: the stored size; crop: side of the output."""

    path: str
    size: int | None
    crop: int
    batch_size: int

    def dataset(self, kind: Callable[..., Any] = LMDBDataset) -> Any:
        first = next(iter(read_current(Path(self.path))[1].images), None)
        return kind(self.path, size=self.size, crop=RandomResizedCrop(self.crop), hflip=HFLIP, images=first)


def find_task(path: str, size: int | None, crop: int | None, batch_size: int | None) -> Workload:
    """Return the workload for a store, with defaults that fit the images.

    Raises:
        StoreError: the store has no images, or masks and no labels.
    """
    manifest = read_current(Path(path))[1]
    if manifest.kind != "images" or (manifest.section("masks") and manifest.labels.kind == "none"):
        kind = "masks without labels" if manifest.kind == "images" else manifest.kind
        raise StoreError(f"{path} holds {kind}, which cannot be measured: give another store of images")
    images = StoreImages(path, size)
    if not len(images):
        raise StoreError(f"{path} has no images to measure")
    side = int(np.median(np.minimum(*images.sides(np.arange(len(images))))))
    return Workload(path, size, crop or min(CROP, side), min(batch_size or BATCH, len(images)))


Start = Callable[[], AbstractContextManager[Measure]]  # starts a contestant, yields its Measure, and ends it


@contextmanager
def streamed(make: Callable[[], Any], count: Callable[[Any], int] = lambda batch: len(batch[0])) -> Iterator[Measure]:
    """Start a loader, and yield its Measure, which does not count batches that may be ready before the clock starts."""
    loader = make()
    ahead = loader.num_workers * ((loader.prefetch_factor or 0) + 1)
    with running(loader) as batches:
        next(batches)
        yield lambda seconds: stream((count(batch) for batch in batches), ahead, seconds)


def our_loader(task: Workload, dataset: Any, workers: int) -> Start:
    """Return a function that starts fastdata's Loader over a dataset."""
    return partial(streamed, partial(Loader, dataset, task.batch_size, shuffle=True, num_workers=workers, prefetch_factor=AHEAD))


class _Bare(IterableDataset[int]):
    """Endlessly makes batches of each worker's share, and yields only each batch's image count."""

    def __init__(self, task: Workload) -> None:
        self.dataset, self.batch_size = task.dataset(), task.batch_size

    def __iter__(self) -> Iterator[int]:
        worker: Any = get_worker_info()
        shares = np.array_split(np.arange(len(self.dataset)), worker.num_workers)
        rows = shares[worker.id] if len(shares[worker.id]) else shares[0]
        for epoch in itertools.count():
            for k in range(0, len(rows), self.batch_size):
                yield len(self.dataset.read_batch(rows[k : k + self.batch_size], seed=0, epoch=epoch)[0])


def decode_limit(task: Workload, processes: int) -> AbstractContextManager[Measure]:
    """Yield the Measure of processes that make images but return only each batch's count."""
    options: Any = {"num_workers": processes, "prefetch_factor": AHEAD, "worker_init_fn": quiet_worker}
    return streamed(partial(DataLoader[Any], _Bare(task), None, **options), int)


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """Images of a SOURCE as ImageFolder makes them, float32 [3, crop, crop]; black where a file cannot be read."""

    def __init__(self, source: str, crop: int) -> None:
        try:
            found = list_sources(source)
        except SplitsError as error:
            first = next(iter(error.splits.values()))
            raise ValueError(f"{source} holds {' and '.join(error.splits)}: measure one, by fastdata doctor {first}") from None
        self.root, self.crop = found.root, crop
        self.sources = [one for one in found.sources if not one.problem]
        if not self.sources:
            raise FastDataError(f"{source} has no image that can be read, so there is nothing to measure")

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(read_source(self.root, self.sources[index]))).convert("RGB")
        except Exception:  # noqa: BLE001  whatever Pillow raises for a bad file
            image = Image.new("RGB", (self.crop, self.crop))
        top, left, height, width = random_box(image.height, image.width)
        image = image.crop((left, top, left + width, top + height)).resize((self.crop, self.crop), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        if random.random() < HFLIP:
            pixels = pixels[:, ::-1]
        mean, std = NORMAL
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255).sub_(mean).div_(std), 0


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) as torchvision's RandomResizedCrop draws them with its defaults."""
    crop = RandomResizedCrop(1)
    draws = torch.rand(crop.draws, 1, dtype=torch.float64).numpy()
    top, left, h, w = crop.boxes(draws, np.array([height]), np.array([width]))[0].tolist()
    return top, left, h, w


# The command


def run_bench(
    store: StrPath, size: int | None, crop: int | None, batch_size: int | None, workers: Sequence[int], seconds: float, repeats: int
) -> list[str]:
    """Measure as `fastdata bench --help` says, and return the lines of a table, whose first contestant is the limit.

    Rates are ratios to the limit in the same round, times its median rate, since clock rates change.
    """
    task, cores = find_task(os.fspath(store), size, crop, batch_size), available_cores()
    counts = sorted(set(workers)) or sorted({0, cores, *(2**k for k in range(cores.bit_length()))})
    dataset = task.dataset()
    records = dataset._images.store.index(dataset._images.variant).lengths
    limit, each = f"decode limit, {cores} bare processes", number_of(cores, "worker")
    starts: dict[str, Start] = {limit: partial(decode_limit, task, cores)}
    starts |= {f"Loader, LMDB, {number_of(count, 'worker')}": our_loader(task, dataset, count) for count in counts}
    options: Any = {"num_workers": cores, "persistent_workers": True, "worker_init_fn": quiet_worker}
    other = partial(DataLoader[Any], dataset, task.batch_size, shuffle=True, **options)
    starts[f"DataLoader, LMDB, {each}"] = partial(streamed, other)
    if records.sum() < 0.5 * free_memory():  # a copy in memory is affordable
        starts[f"Loader, RAM, {each}"] = our_loader(task, task.dataset(partial(RAMDataset, masks=False)), cores)
    bar = tqdm(total=len(starts) * (repeats + 1), disable=None, leave=False)

    def measure(start: Start, seconds: float) -> Run:
        """Time a contestant, without its start and end."""
        with start() as timed:
            run = timed(seconds)
        bar.update()
        return run

    with bar:
        runs = interleave({name: partial(measure, start) for name, start in starts.items()}, seconds=seconds, repeats=repeats)
    rows, results = [], summarize(runs, limit)
    for row in results:
        ratio = row["ratio"]
        images_per_s = ratio["median"] * results[0]["images_per_s"]["median"]
        cells = [row["name"], f"{ratio['median']:.2f}", f"{ratio['min']:.2f} - {ratio['max']:.2f}", f"{images_per_s:,.0f}"]
        rows.append([*cells, f"{images_per_s * float(records.mean()) / 1e6:.1f}", f"{row['cpu_ms_per_image']:.2f}"])
    return table(["", "of the limit", "min - max", "images/s", "MB/s in", "CPU ms/image"], rows)
