"""The gain that `fastdata doctor` measures beside the one that is seen after following it: photos, Pillow, torch's DataLoader.

    python benchmarks/doctor.py PHOTOS [--copies 5] [--pairs 6] [--epochs 5]

PHOTOS is a folder of class folders, of which COPIES are read. Doctor and the loops take turns, and in a pair both loops, by epochs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata.bench.doctor import examine
from fastdata.bench.loaders import random_box

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Photos(Dataset[Any]):
    """What one writes by hand: Pillow, RandomResizedCrop(224), a flip, floats, normalized."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(path for path in root.rglob("*") if path.is_file())
        self.classes = sorted({path.parent.name for path in self.files})
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.files[index]).convert("RGB")
        top, left, height, width = random_box(image.height, image.width)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else image
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return (pixels - self.mean) / self.std, self.classes.index(self.files[index].parent.name)


def loader() -> DataLoader[Any]:
    return DataLoader(Photos(Path(os.environ["PHOTOS"])), 64, shuffle=True, num_workers=2)


def model() -> Any:
    net = nn.Sequential(nn.Conv2d(3, 8, 7, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(512, 1000))
    return lambda batch: nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()


def rate(batches: Any) -> float:
    """Return images/s of training over an epoch."""
    step = model()
    images, started = 0, time.perf_counter()
    for batch in batches:
        step(batch)
        images += len(batch[0])
    return images / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "photos")
        os.environ["PHOTOS"] = str(folder)
        for k in range(given.copies):
            for path in given.photos.rglob("*.*"):
                copy = folder / path.parent.name / f"{k}-{path.name}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        store = fastdata.prep(folder, Path(name, "photos.fds"), size=256).out
        dataset = fastdata.LMDBDataset(store, crop=fastdata.RandomResizedCrop(224), hflip=0.5)
        shares = []
        for _ in range(given.pairs):
            gain: Any = examine(str(folder), loader="doctor:loader", model="doctor:model").gain
            normalize = fastdata.GPUNormalize(MEAN, STD)
            with fastdata.Loader(dataset, 64, shuffle=True, num_workers=2, batch_transform=normalize) as batches:
                before, after = zip(*[(rate(loader()), rate(batches)) for _ in range(given.epochs)], strict=True)
            seen = statistics.median(b / a for a, b in zip(before, after, strict=True))
            shares.append(gain / seen)
            print(
                f"measured {gain:.2f}, seen {seen:.2f}",
                *(f"{a:,.0f}:{b:,.0f}" for a, b in zip(before, after, strict=True)),
                flush=True,
            )
        print(f"measured / seen: median {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")


if __name__ == "__main__":
    main()
