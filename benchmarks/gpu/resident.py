"""Small images that live on the device: training at the size of CIFAR-10, with `Loader(resident="cuda")` and without.

    python benchmarks/gpu/resident.py [--device cpu] [--quick]

RandomCrop(32, padding=4) and a flip, a ResNet-9 in bfloat16, channels_last, batches of 512. The images are cut from photos.
"""

from __future__ import annotations

import threading
from statistics import median
from typing import Any

import torch
from fed import Fed, one_batch, same
from part import Result, Setting, Wrong, activities, busy_share, main, rows_of
from torch import Tensor, nn

from fastdata import Loader, RAMDataset, RandomCrop
from fastdata.bench.harness import interleave

CEILING, RESIDENT, WORKERS = "one batch that stays on the device", "`Loader`, the set on the device", "`Loader`, workers and copies"
SAMPLE_S = 0.2  # between two looks at how busy the device is


def measure(setting: Setting) -> Result:
    rows = 16 if setting.quick else 512
    dataset = RAMDataset(setting.inputs.small, crop=RandomCrop(32, padding=4), hflip=0.5, decoded=True)
    torch.manual_seed(0)
    network = ResNet9(len(dataset.classes) or 10, width=8 if setting.quick else 64)
    result = Result([f"{len(dataset):,} images, batches of {rows}, ResNet-9, bf16 autocast, channels_last, SGD."])
    options: dict[str, Any] = {"shuffle": True, "drop_last": True}
    with Loader(dataset, rows, num_workers=setting.workers, device=setting.target, **options) as workers:
        with Loader(dataset, rows, num_workers=0, **options) as alone:
            batch = one_batch(alone, setting.device)
            loaders = {WORKERS: workers, RESIDENT: Loader(dataset, rows, resident=setting.device, **options)}
            for loader in loaders.values():
                alone.set_epoch(0)
                same(loader, alone, 2)
        result.checked.append(f"batches of {len(loaders)} loaders equal those that one process makes on the CPU, bit for bit")
        contestants = {name: Fed(setting, network, batches, rows) for name, batches in {CEILING: batch, **loaders}.items()}
        calls = {name: one.measure for name, one in contestants.items()}
        runs = interleave(calls, seconds=setting.seconds(1.5), repeats=setting.rounds, warmup=setting.warmup)
        result.rows = rows_of(runs, CEILING, "images/s")
        for row in result.rows:
            look(setting, contestants[row["name"]], row)
    shown = {row["name"]: row for row in result.rows}
    for one in contestants.values():
        if not one.finite():
            raise Wrong("weights are not finite after training")
    result.checked.append("all weights are finite afterwards")
    row = shown[RESIDENT]
    busy = row.get("used") if row.get("used") is not None else row.get("busy")
    result.ask("the device is busy, the set on it", 0.95, busy)
    result.ask("share of the time that the host waits for data, the set on the device", 0.01, row.get("waits"), most=True)
    return result


def look(setting: Setting, one: Fed, row: dict[str, Any]) -> None:
    """Add to a row how busy the device is, by the profiler and by the driver, and the share of waiting."""
    updates = 2 if setting.quick else 30
    row["waits"] = median(one.waits)
    row["busy"] = busy_share(activities(setting, lambda: one.train(updates)))
    row["used"] = used(one, setting.seconds(2.0)) if setting.cuda else None
    said = "" if row["used"] is None else f"; {row['used']:.1%} by the driver"
    row["note"] = f"device busy {row['busy']:.1%} under the profiler{said}; waits for data {row['waits']:.2%}"


def used(one: Fed, seconds: float) -> float | None:
    """The driver's figure, the median of its samples; None: this installation can't ask for it."""
    try:
        torch.cuda.utilization()
    except Exception:  # noqa: BLE001  the package that asks the driver is missing, or has errors of its own
        return None
    samples, over = list[int](), threading.Event()

    def ask() -> None:
        while not over.wait(SAMPLE_S):
            samples.append(torch.cuda.utilization())

    one.measure(1.0)  # the driver's figure is of a time gone by
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        one.measure(seconds)
    finally:
        over.set()
        asking.join()
    return median(samples) / 100


class Block(nn.Sequential):
    def __init__(self, channels: int, out: int, *, pool: bool) -> None:
        layers = [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        super().__init__(*layers, *[nn.MaxPool2d(2)] * pool)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class ResNet9(nn.Sequential):
    """Of 32 x 32 pixels; eight convolutions and a linear layer, as in David Page's "How to train your ResNet"."""

    def __init__(self, classes: int, *, width: int) -> None:
        def residual(n: int) -> nn.Module:
            return Residual(Block(n, n, pool=False), Block(n, n, pool=False))

        first, second, third, last = (width * 2**k for k in range(4))
        stages = [Block(3, first, pool=False), Block(first, second, pool=True), residual(second), Block(second, third, pool=True)]
        stages += [Block(third, last, pool=True), residual(last), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
        super().__init__(*stages)


if __name__ == "__main__":
    main(measure)
