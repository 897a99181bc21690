"""What a random crop of a volume costs in one process, step by step, and with rows that are copied as one value each.

python benchmarks/array_steps.py [--side 512] [--rounds 16]

CPU microseconds a crop of 64 a side, uint16, in chunks of 32; medians of interleaved rounds, the first of which does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from arrays import CHUNK, write_volume

import fastdata
from fastdata import ArrayDataset, RandomCrop
from fastdata.arrays.chunked import StoreArrays
from fastdata.arrays.chunks import touched

CROP, BATCH, BATCHES = 64, 8, 40
Read = Callable[..., None]


def _chunks(arrays: StoreArrays, start: Sequence[int]) -> Iterator[Any]:
    shape = tuple(arrays.sides[0].tolist())
    return touched(shape, (CHUNK,) * 3, tuple(start), tuple(k + CROP for k in start))


def nothing(self: StoreArrays, row: int, start: Sequence[int], flips: Any, out: Any, outside: int) -> None:
    """Drawing the boxes alone."""


def found(self: StoreArrays, row: int, start: Sequence[int], flips: Any, out: Any, outside: int) -> None:
    for _ in _chunks(self, start):
        pass


def looked_up(self: StoreArrays, row: int, start: Sequence[int], flips: Any, out: Any, outside: int) -> None:
    for part in _chunks(self, start):
        np.frombuffer(self._get(part.place), self.dtype).reshape(part.shape)


def as_rows(self: StoreArrays, row: int, start: Sequence[int], flips: Any, out: Any, outside: int) -> None:
    for part in _chunks(self, start):
        values = np.frombuffer(self._get(part.place), self.dtype).reshape(part.shape)
        old, new = values[part.wanted], out[part.target]
        whole = np.dtype((np.void, new.shape[-1] * self.dtype.itemsize))
        new.view(whole)[...] = old.view(whole)


STEPS: dict[str, Read] = {
    "drawing the box": nothing,
    "and finding its chunks": found,
    "and looking them up": looked_up,
    "all of it": StoreArrays.read,
    "all of it, each row copied as one value": as_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_volume(Path(folder) / "v.npy", given.side)
        fastdata.prep(Path(folder) / "v.npy", Path(folder) / "v.fds", chunk=CHUNK)
        dataset = ArrayDataset(Path(folder) / "v.fds", crop=RandomCrop((CROP,) * 3)).subset([0] * BATCH * BATCHES)
        out, times = np.empty((BATCH, *(CROP,) * 3), np.uint16), {name: list[float]() for name in STEPS}
        made: dict[str, Any] = {}
        for epoch in range(given.rounds + 1):
            for name, read in STEPS.items():
                StoreArrays.read = read  # type: ignore[method-assign]
                started = time.process_time()
                for k in range(BATCHES):
                    ids = np.arange(BATCH) + BATCH * k
                    dataset.read_batch(ids, seed=0, epoch=epoch, allocate=lambda shape, dtype: out)
                times[name] += [(time.process_time() - started) / (BATCH * BATCHES) * 1e6] if epoch else []
                made[name] = out.copy()
    assert np.array_equal(made["all of it"], made["all of it, each row copied as one value"]), "the crops differ"
    for name, values in times.items():
        print(f"{statistics.median(values):6.0f} us ({min(values):.0f} to {max(values):.0f})  {name}")


if __name__ == "__main__":
    main()
