"""One way to get random crops of a volume, as a process that is asked over stdin. Needs numpy and torch, and what it measures.

    python array_contestant.py serve SPEC      SPEC: a JSON file, see benchmarks/arrays.py
    python array_contestant.py prepare SPEC    store the volume in the contestant's own format

The value at (z, y, x) is z * A + y * B + x * C modulo 2^16, so that a crop tells by itself whether its values are neighbours.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

FACTORS = (7919, 20_011, 31)
Batches = Callable[[], Iterator[Any]]


def values(*places: Any) -> Any:
    """uint16 values of a box, from its indices along each axis."""
    total = sum(np.asarray(k, np.uint32) * f for k, f in zip(np.ix_(*places), FACTORS, strict=True))
    return np.asarray(total).astype(np.uint16)


def boxes(spec: dict[str, Any]) -> tuple[slice, ...]:
    starts = [random.randint(0, side - spec["crop"]) for side in spec["shape"]]
    return tuple(slice(k, k + spec["crop"]) for k in starts)


def copy(spec: dict[str, Any]) -> Batches:
    """The limit: numpy's copy between two arrays larger than the cache, one core. Counted in batches of the same bytes."""
    source: Any = np.load(spec["npy"])
    target, crop = np.empty_like(source), (spec["crop"],) * 3
    count = source.size // (spec["batch"] * spec["crop"] ** 3)

    def batches() -> Iterator[Any]:
        while True:
            np.copyto(target, source)
            part = target[tuple(slice(0, side) for side in crop)]
            for _ in range(count):
                yield np.broadcast_to(part, (spec["batch"], *crop))

    return batches


def fastdata(spec: dict[str, Any], *, in_memory: bool = False) -> Batches:
    from fastdata import ArrayDataset, Loader, RAMDataset, RandomCrop

    made = (RAMDataset if in_memory else ArrayDataset)(spec["store"], crop=RandomCrop((spec["crop"],) * 3))
    loader = Loader(made.subset([0] * 4096), spec["batch"], shuffle=True, num_workers=spec["workers"])

    def batches() -> Iterator[Any]:
        while True:
            yield from (volumes for volumes, _ in loader)

    return batches


class Crops(Dataset[Any]):
    """Random crops of what `open_array` opens, in each process when it is first needed."""

    def __init__(self, spec: dict[str, Any], open_array: Callable[[], Any]) -> None:
        self.spec, self._open, self._array = spec, open_array, None

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        if self._array is None:
            self._array = self._open()
        return torch.from_numpy(np.array(self._array[boxes(self.spec)]))


def slices(spec: dict[str, Any], open_array: Callable[[], Any]) -> Batches:
    """Slices of an array: in this process, or by the workers of a DataLoader."""
    loader: Any = DataLoader(
        Crops(spec, open_array), spec["batch"], num_workers=spec["workers"], persistent_workers=spec["workers"] > 0
    )

    def alone() -> Iterator[Any]:
        array = open_array()
        while True:
            out = np.empty((spec["batch"], *(spec["crop"],) * 3), np.uint16)
            for crop in out:
                crop[...] = array[boxes(spec)]
            yield torch.from_numpy(out)

    def by_workers() -> Iterator[Any]:
        while True:
            yield from loader

    return by_workers if spec["workers"] else alone


def memmap(spec: dict[str, Any]) -> Batches:
    return slices(spec, lambda: np.load(spec["npy"], mmap_mode="r"))


def zarr(spec: dict[str, Any]) -> Batches:
    def open_array() -> Any:
        import zarr

        return zarr.open_array(spec["zarr"], mode="r")

    return slices(spec, open_array)


KINDS: dict[str, tuple[Callable[[dict[str, Any]], Batches], tuple[str, ...]]] = {
    "copy": (copy, ("numpy",)),
    "fastdata": (fastdata, ("fastdata-torch", "torch")),
    "memory": (lambda spec: fastdata(spec, in_memory=True), ("fastdata-torch", "torch")),
    "memmap": (memmap, ("numpy", "torch")),
    "zarr": (zarr, ("zarr", "torch")),
}


def prepare(spec: dict[str, Any]) -> None:
    """The volume as a Zarr array of the same chunks, raw, one file a chunk."""
    import zarr

    volume, chunks = np.load(spec["npy"], mmap_mode="r"), (spec["chunk"],) * 3
    array = zarr.create_array(spec["zarr"], shape=volume.shape, chunks=chunks, dtype="uint16", compressors=None)
    array[...] = volume


def sound(batch: Any, spec: dict[str, Any]) -> bool:
    """Whether these are crops of the volume, from several places."""
    found = np.asarray(batch)
    if found.shape != (spec["batch"], *(spec["crop"],) * 3) or found.dtype != np.uint16:
        return False
    places = [np.arange(spec["crop"])] * 3
    right = all(np.array_equal(crop - crop[0, 0, 0], values(*places)) for crop in found)
    return right and (spec["kind"] == "copy" or len({int(crop[0, 0, 0]) for crop in found}) > 1)


def main() -> None:
    spec = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "prepare":
        prepare(spec)
        return
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    make, packages = KINDS[spec["kind"]]
    random.seed(0)
    batches = make(spec)()
    print(json.dumps({"versions": {name: metadata.version(name) for name in packages}}), file=replies)
    for _ in sys.stdin:
        count, kept, started = 0, [], time.perf_counter()
        while time.perf_counter() - started < spec["seconds"]:
            for _ in range(8):
                batch = next(batches)
            kept += [] if kept else [batch]
            count += 8
        seconds = time.perf_counter() - started
        right = sound(kept[0], spec) and sound(batch, spec)
        print(json.dumps({"images": count * spec["batch"], "seconds": seconds, "sound": right}), file=replies)


if __name__ == "__main__":
    main()
