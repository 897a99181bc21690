"""ResNet-50 in bfloat16, fed from JPEG records, beside the same loop on one batch that stays on the device.

    python benchmarks/gpu/resnet50.py [--device cpu] [--quick]

RandomResizedCrop(224) and a flip, batches of 256, channels_last, SGD, through Loader, GPUNormalize and Trainer. With --quick a tiny
network takes its place.
"""

from __future__ import annotations

import importlib.util
from statistics import median
from typing import Any

import torch
from fed import Fed, one_batch, same
from part import Result, Setting, Wrong, main, rows_of
from torch import nn

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.bench.harness import interleave

RESIDENT, FED = "one batch that stays on the device", "`Loader` from JPEG records"


def measure(setting: Setting) -> Result:
    rows, side = (8, 64) if setting.quick else (256, 224)
    dataset = LMDBDataset(setting.inputs.store, crop=RandomResizedCrop(side), hflip=0.5)
    torch.manual_seed(0)
    network, name = tiny(len(dataset.classes)) if setting.quick else resnet50(len(dataset.classes))
    result = Result([f"{name}, bf16 autocast, channels_last, batch {rows}, SGD; {setting.workers} workers."])
    options: dict[str, Any] = {"shuffle": True, "drop_last": True}
    with (
        Loader(dataset, rows, num_workers=setting.workers, device=setting.target, **options) as loader,
        Loader(dataset, rows, num_workers=0, **options) as alone,
    ):
        same(loader, alone, 2)
        result.checked.append("batches on the device equal those that one process makes on the CPU, bit for bit")
        contestants = {
            RESIDENT: Fed(setting, network, one_batch(alone, setting.device), rows),
            FED: Fed(setting, network, loader, rows),
        }
        calls = {name: one.measure for name, one in contestants.items()}
        runs = interleave(calls, seconds=setting.seconds(3.5), repeats=setting.rounds, warmup=setting.warmup)
    for name, one in contestants.items():
        if not one.finite():
            raise Wrong(f"weights are not finite after training on {name}")
    result.checked.append("all weights are finite afterwards")
    result.rows = rows_of(runs, RESIDENT, "images/s")
    wait = median(contestants[FED].waits)
    result.rows[1]["note"] = f"waits for data {wait:.2%} of the time"
    result.ask("fed : resident", 0.98, result.rows[1]["of_ceiling"]["median"])
    result.found["share of the time that the host waits for data"] = wait
    return result


def resnet50(classes: int) -> tuple[nn.Module, str]:
    """That of timm, or of torchvision."""
    if importlib.util.find_spec("timm"):
        import timm

        return timm.create_model("resnet50", num_classes=classes), "ResNet-50 of timm"
    import torchvision

    return torchvision.models.resnet50(num_classes=classes), "ResNet-50 of torchvision"


def tiny(classes: int) -> tuple[nn.Module, str]:
    layers = (
        nn.Conv2d(3, 8, 7, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )
    return nn.Sequential(*layers), "A tiny network"


if __name__ == "__main__":
    main(measure)
