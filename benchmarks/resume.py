"""Seconds from a new Trainer to its first update, in the middle of an epoch of many samples.

python benchmarks/resume.py [--samples 10000000] [--batch 256] [--workers 2]

The samples are made up, so that it is the way to the place that takes the time. Beside fastdata's Loader stands torch's DataLoader,
whose batches have to be drawn again; it starts that far into an epoch of `--redrawn` samples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fastdata import Loader, Trainer


class Made(Dataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        return torch.full((16,), k % 7.0), k % 3


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def seconds(kind: str, samples: int, share: float, batch: int, workers: int) -> float:
    """Until the first update after a resume at that share of an epoch."""
    used = int(samples * share) // batch
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers}
    make = (
        (lambda: Loader(Made(samples), batch, **options))
        if kind == "Loader"
        else lambda: DataLoader(Made(samples), batch, **options)
    )
    with tempfile.TemporaryDirectory() as folder:
        state = made(folder).state_dict()
        loader: Any = make()
        place = {**loader.state_dict(), "consumed": used * batch} if kind == "Loader" else None
        random = state["ranks"][0]["random"]
        state["ranks"][0]["place"] = {"used": used, "loader": place, "ahead": None, "random": random, "own": []}
        state["update"] = used
        checkpoints = Path(folder, "checkpoints")
        torch.save(state, checkpoints / f"update-{used:08}.pt")
        started = time.perf_counter()
        again = made(folder)
        assert again.resume()
        first = next(again.steps(make()))
        passed = time.perf_counter() - started
        assert first == used + 1
    return passed


def made(folder: str) -> Trainer:
    return Trainer(nn.Linear(16, 3), loss, partial(torch.optim.SGD, lr=0.1), dir=folder, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--redrawn", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    seconds("Loader", 1000, 0.0, 10, 0)  # imports
    for kind, samples in (("Loader", args.samples), ("DataLoader", args.redrawn)):
        for share in (0.0, 0.5, 0.9):
            rounds = sorted(seconds(kind, samples, share, args.batch, args.workers) for _ in range(5))
            print(f"{kind}, {samples:,} samples, at {share:.0%}: {rounds[2]:.3f} s ({rounds[0]:.3f} to {rounds[4]:.3f})")


if __name__ == "__main__":
    main()
