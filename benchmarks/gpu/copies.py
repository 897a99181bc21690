"""Copies to the device as the Loader makes them, from its slots, beside plain asynchronous copies from page-locked memory.

    python benchmarks/gpu/copies.py [--device cpu] [--quick]

So that the cores are no bound, the workers of one Loader deliver the same batch over and over, and find it in their slots. On a CPU
a clone stands for the copy.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from part import Result, Run, Setting, Wrong, activities, consume, main, ratios, repeat, rows_of, spread

from fastdata import LMDBDataset, Loader, RandomCrop
from fastdata.bench.harness import interleave
from fastdata.data.dataset import SlotDataset
from fastdata.system.shared_memory import SharedArray

PLAIN, SLOTS = "plain copies, page-locked tensors", "`Loader`, batches that lie in its slots"
PLAIN_ALONE, SLOTS_ALONE = "plain copies, while one runs", "the Loader's copies, while one runs"
REAL = "`Loader`, bare pixels from disk, RandomCrop"

Array = np.ndarray[Any, np.dtype[Any]]


class Filled(SlotDataset):
    """One batch, over and over: a worker that finds it in a slot from the last time leaves it there."""

    def __init__(self, images: Array, times: int) -> None:
        super().__init__()
        self._images, self._times = SharedArray.of(images), times

    def __len__(self) -> int:
        return len(self._images.array) * self._times

    def read_batch(self, indices: Array, *, allocate: Callable[..., Array] = np.empty, **_: Any) -> tuple[Array, Array]:
        images = self._images.array
        out = allocate(images.shape, images.dtype)
        if not np.array_equal(out[-1], images[-1]):
            out[:] = images
        return out, np.asarray(indices)

    def assemble(self, arrays: Sequence[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        images, targets = super().assemble(arrays, targets)
        return images.permute(0, 3, 1, 2), targets

    def sample_bytes(self) -> int:
        return int(self._images.array[0].nbytes)


def measure(setting: Setting) -> Result:
    rows, side = (8, 64) if setting.quick else (256, 224)
    images = setting.inputs.pixels(rows, side)
    real = LMDBDataset(setting.inputs.raw, crop=RandomCrop(side))
    options: dict[str, Any] = {"num_workers": setting.workers, "device": setting.target}
    result = Result([f"uint8 batches of {rows} x 3 x {side} x {side}, {images.nbytes / 1e6:.1f} MB, of photos."])
    with (
        Loader(Filled(images, 64), rows, **options) as filled,
        Loader(real, rows, shuffle=True, drop_last=True, **options) as loader,
    ):
        check(setting, filled, images, result)
        slots, disk = delivered(setting, filled), delivered(setting, loader)
        plain = Plain(setting, images, filled.stats().slots)
        ready = filled.stats().slots
        size = images.nbytes / rows  # of an image: what `consume` counts

        def while_copying(call: Callable[[int], Any]) -> Callable[[float], Run]:
            return lambda _: copying(setting, call, images.nbytes)

        def in_turns(calls: dict[str, Callable[[float], Run]]) -> dict[str, list[Run]]:
            return interleave(calls, seconds=setting.seconds(1.0), repeats=setting.rounds, warmup=setting.warmup)

        runs = in_turns(
            {
                PLAIN: plain.measure,
                SLOTS: lambda seconds: bytes_of(consume(setting, slots, rows, ready, seconds), size),
                REAL: lambda seconds: bytes_of(consume(setting, disk, rows, ready, seconds), size),
            }
        )
        # Last, since CUDA's calls take longer once a process has been profiled.
        runs |= in_turns({PLAIN_ALONE: while_copying(plain), SLOTS_ALONE: while_copying(lambda _: next(slots))})
    result.rows = rows_of(runs, PLAIN, "GB/s", 1e-9)
    rates = {name: [run.images / run.seconds for run in done] for name, done in runs.items()}
    alone = spread(ratios(rates[SLOTS_ALONE], rates[PLAIN_ALONE]))["median"]
    result.ask("one of the Loader's copies : one plain copy", 0.9, alone)
    result.ask("the Loader, batch after batch : plain copies, one after another", 0.9, result.rows[1]["of_ceiling"]["median"])
    return result


def delivered(setting: Setting, loader: Loader) -> Iterator[torch.Tensor]:
    """Images on the device, epoch after epoch."""
    while True:
        for images, _ in loader:
            yield images if setting.cuda else images.clone()


def check(setting: Setting, loader: Loader, images: Array, result: Result) -> None:
    """An epoch of the same batch, every byte of it."""
    want = torch.from_numpy(images).permute(0, 3, 1, 2).to(setting.device)
    for number, (found, _) in enumerate(loader):
        if found.device.type != setting.device.type or not torch.equal(found, want):
            raise Wrong(f"batch {number} is not what lies in the slots")
    result.checked.append(f"{len(loader)} batches arrived on {setting.device}, each byte as it was")


class Plain:
    """Copies of the same batch from as many page-locked tensors as the Loader has slots."""

    def __init__(self, setting: Setting, images: Array, count: int) -> None:
        made = (torch.from_numpy(images).clone().permute(0, 3, 1, 2) for _ in range(count))
        self.setting, self.sources = setting, [one.pin_memory() if setting.cuda else one for one in made]

    def __call__(self, number: int) -> torch.Tensor:
        source = self.sources[number % len(self.sources)]
        return source.to(self.setting.device, non_blocking=True) if self.setting.cuda else source.clone()

    def measure(self, seconds: float) -> Run:
        calls, spent = len(self.sources), 0.0
        for turns in itertools.count(1):
            spent += repeat(self.setting, self, calls)
            if spent >= seconds:
                return Run(turns * calls * self.sources[0].nbytes, spent, 0.0)
        raise AssertionError


def bytes_of(run: Run, size: float) -> Run:
    return run._replace(images=run.images * size)


def copying(setting: Setting, call: Callable[[int], Any], size: int, count: int = 20) -> Run:
    """Bytes that were copied, and the time during which a copy of them ran."""
    kind = "Memcpy HtoD" if setting.cuda else "aten::clone"
    found = activities(setting, lambda: [call(k) for k in range(count + 4)])  # some may have been copied ahead
    copies = heapq.nlargest(count, (one.stop - one.start for one in found if one.name.startswith(kind)))
    if len(copies) < count:
        raise Wrong(f"the profiler saw {len(copies)} copies of {count}: {sorted({one.name for one in found})}")
    return Run(count * size, sum(copies) / 1e6, 0.0)


if __name__ == "__main__":
    main(measure)
