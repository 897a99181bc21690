"""The backends of the Loader on this machine: worker processes, DALI, both at once, and DALI with JPEGs that are not cut before.

python benchmarks/backends.py STORE [--device cuda] [--seconds 2] [--rounds 5]        needs pip install '.[dali]'

Batches of 64, shuffled, one worker or thread a core; images/s of RandomResizedCrop(224) and a flip (train), and of
CenterCrop(224) (eval). Contestants take turns; what each had ready before its turn does not count.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator

import torch

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from fastdata.bench.harness import Run, interleave, summarize
from fastdata.loader import dali
from fastdata.machine import available_cores

ROWS = 64
NAMES = {
    "torch": ("torch", True),
    "dali": ("dali", True),
    "dali, whole JPEGs": ("dali", False),
    "hybrid:0.25": ("hybrid:0.25", True),
}


class Contestant:
    """A Loader that goes on and on."""

    def __init__(self, dataset: LMDBDataset, backend: str, device: str | None, *, cut: bool) -> None:
        self._loader = Loader(
            dataset, ROWS, shuffle=True, drop_last=True, num_workers=available_cores(), backend=backend, device=device
        )
        self._ahead = 2 * available_cores() + 1
        dali.CUT_ON_CPU = dali.CUT_ON_GPU = cut  # looked at when the first batch is asked for
        self._batches = self._endless()
        next(self._batches)

    def _endless(self) -> Iterator[torch.Tensor]:
        while True:
            for images, _ in self._loader:
                assert images.shape == (ROWS, 3, 224, 224) and images.dtype == torch.uint8
                yield images

    def measure(self, seconds: float) -> Run:
        for _ in itertools.islice(self._batches, self._ahead):
            pass
        wait()
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            next(self._batches)
            count += 1
        wait()
        return Run(count * ROWS, time.perf_counter() - started, cpu_s=0.0)

    def close(self) -> None:
        self._loader.close()


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for work, crop, flip in (("train", RandomResizedCrop(224), 0.5), ("eval", CenterCrop(224), 0.0)):
        dataset = LMDBDataset(given.store, crop=crop, hflip=flip)
        contestants = {name: Contestant(dataset, backend, given.device, cut=cut) for name, (backend, cut) in NAMES.items()}
        runs = interleave({name: one.measure for name, one in contestants.items()}, seconds=given.seconds, repeats=given.rounds)
        for row in summarize(runs, reference="torch"):
            rate, ratio = row["images_per_s"], row["ratio"]
            spread = f"{ratio['min']:.2f} to {ratio['max']:.2f}"
            print(f"{work}, {row['name']}: {rate['median']:,.0f} images/s, {ratio['median']:.2f} of torch ({spread})")
        for one in contestants.values():
            one.close()


if __name__ == "__main__":
    main()
