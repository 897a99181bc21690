"""What a batch costs the training process, with workers that replay: they allocate batches as ever, and decode nothing.

    python benchmarks/consumer.py [--workers 2] [--seconds 2] [--rounds 7]

The Loader, whose workers fill slots, takes turns with torch's DataLoader, whose default_collate makes shared memory for each batch.
Batches are 64 x 3 x 224 x 224 bytes and 64 targets; a byte of each sample is read. The limit is what one core could take that does
nothing else, and the number of workers that it keeps busy at --rate images/s each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import fastdata
from fastdata.bench.harness import running, settle
from fastdata.system.torch_private import shared_storage

BATCH, SHAPE = 64, (224, 224, 3)


class Replay(fastdata.LMDBDataset):
    """Images that are not read."""

    def read_batch(self, indices: Any, *, allocate: Any = np.empty, **_: Any) -> Any:
        return allocate((len(indices), *SHAPE), np.dtype(np.uint8)), np.asarray(indices)


class TorchReplay(IterableDataset[Any]):
    """Batches as default_collate makes them in a worker, without copies of items."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(1 << 30):
            images = torch.empty(0, dtype=torch.uint8).set_(shared_storage(BATCH * int(np.prod(SHAPE))))  # type: ignore[call-overload]
            targets = torch.empty(0, dtype=torch.int64).set_(shared_storage(8 * BATCH))  # type: ignore[call-overload]
            yield images.view(BATCH, *SHAPE).permute(0, 3, 1, 2), targets


def consume(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Return batches/s, and the CPU seconds of this process for a batch."""
    count, started, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < started + seconds:
        batch = next(batches)
        int(batch[0][:, 0, 0, 0].sum())
        del batch
        count += 1
    return count / (time.perf_counter() - started), (time.process_time() - cpu) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("workers", 2), ("seconds", 2.0), ("rounds", 7), ("rate", 3000.0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = fastdata.prep(np.zeros((BATCH, *SHAPE), np.uint8), Path(folder, "o.fds"), codec="rgb", workers=1).out
        data = Replay(store).subset(np.arange(1 << 20) % BATCH)
        ours = fastdata.Loader(data, BATCH, shuffle=True, num_workers=given.workers)
        theirs = DataLoader(TorchReplay(), None, num_workers=given.workers)
        found: dict[str, list[tuple[float, float]]] = {"Loader": [], "DataLoader": []}
        with running(ours) as one, running(theirs) as other:
            for _ in range(given.rounds + 1):
                for name, batches in zip(found, (one, other), strict=True):
                    settle()
                    found[name].append(consume(batches, given.seconds))
    for name, turns in found.items():
        rate, cpu = (median(values) for values in zip(*turns[1:], strict=True))
        print(f"{name}: {rate:,.0f} batches/s, {1e6 * cpu:,.0f} us of CPU a batch: ", end="")
        print(f"at most {1 / cpu:,.0f} batches/s, of {BATCH / cpu / given.rate:,.0f} workers")
    ratios = [one[0] / other[0] for one, other in zip(*found.values(), strict=True)]
    print(f"batches/s, Loader / DataLoader: {median(ratios[1:]):.2f} ({min(ratios[1:]):.2f} to {max(ratios[1:]):.2f})")


if __name__ == "__main__":
    main()
