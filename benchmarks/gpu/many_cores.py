"""Processes or threads: the Loader beside threads of one process that fill the same slots, on all cores and on half of them.

    python benchmarks/gpu/many_cores.py [--device cpu] [--quick]

RandomResizedCrop(224) and a flip, batches of 64, to memory of the host. The contestants are those of `benchmarks/engines.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from part import Result, Run, Setting, Wrong, consume, main, rows_of

from fastdata import LMDBDataset, RandomResizedCrop
from fastdata.bench.harness import interleave

sys.path.append(str(Path(__file__).resolve().parents[1]))
from engines import AHEAD, BATCH, processes, threads


def measure(setting: Setting) -> Result:
    dataset = LMDBDataset(setting.inputs.store, crop=RandomResizedCrop(224), hflip=0.5)
    cores = setting.workers
    counts = sorted({cores, max(1, cores // 2)})
    contestants = {f"{count} {engine.__name__}": engine(dataset, count) for engine in (processes, threads) for count in counts}
    first = {name: next(batches).clone() for name, batches in contestants.items()}  # all workers live before the first turn
    for name, images in first.items():
        if not torch.equal(images, first[f"{cores} processes"]):
            raise Wrong(f"{name} begin with other pixels than {cores} processes")

    def turn(name: str, batches: Iterator[torch.Tensor]) -> Callable[[float], Run]:
        ready = (AHEAD + 1) * int(name.split()[0])
        return lambda seconds: consume(setting, batches, BATCH, 1 if setting.quick else ready, seconds)

    calls = {name: turn(name, batches) for name, batches in contestants.items()}
    runs = interleave(calls, seconds=setting.seconds(1.0), repeats=setting.rounds, warmup=setting.warmup)
    result = Result(
        [f"Batches of {BATCH}, to memory of the host. The ceiling is what {cores} processes reach: the Loader as it is."]
    )
    result.rows = rows_of(runs, f"{cores} processes", "images/s")
    result.checked.append("all begin with the same batch, bit for bit")
    return result


if __name__ == "__main__":
    main(measure)
