"""Train the same network twice, from the same weights: fed by fastdata, and by a plain Dataset of Pillow in torch's DataLoader.

    python examples/beside_torch.py TRAIN TEST [--seeds 3] [--picture training.png]

TRAIN and TEST have a folder of images for each class, such as CIFAR-10's. Both loops have the same crops, flips, batch size,
optimizer and schedule; the random numbers differ. It prints the accuracy and the seconds of each run, preparing included, and
draws the curves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import fastdata

MEAN, STD = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]
SIDE, BATCH, WORKERS = 32, 64, 2


class Photos(Dataset[tuple[Tensor, int]]):
    """Images in folders of classes, read by Pillow, as many projects have it."""

    def __init__(self, root: Path, *, training: bool) -> None:
        self.classes = sorted(path.name for path in root.iterdir())
        self.files = [(path, k) for k, name in enumerate(self.classes) for path in sorted((root / name).iterdir())]
        self.training = training

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        path, target = self.files[k]
        image = np.asarray(Image.open(path).convert("RGB"))
        if self.training:
            image = np.pad(image, ((4, 4), (4, 4), (0, 0)))
            top, left, flip = (int(torch.randint(n, ())) for n in (9, 9, 2))
            image = image[top : top + SIDE, left : left + SIDE]
            image = image[:, ::-1] if flip else image
        tensor = torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
        return (tensor - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None], target


def fed_by_torch(train: Path, test: Path, seed: int) -> tuple[Any, Any, nn.Module]:
    """Return the loaders, and what normalizes their batches: the dataset did so already."""
    generator = torch.Generator().manual_seed(seed)
    options = {"num_workers": WORKERS, "persistent_workers": True}
    first = DataLoader(Photos(train, training=True), BATCH, shuffle=True, drop_last=True, generator=generator, **options)
    return first, DataLoader(Photos(test, training=False), BATCH, **options), nn.Identity()


def fed_by_fastdata(train: Path, test: Path, seed: int) -> tuple[Any, Any, nn.Module]:
    """Prepare both folders, and return the loaders and what normalizes their batches."""
    folder = Path(tempfile.mkdtemp())
    crops = fastdata.RandomCrop(SIDE, padding=4), fastdata.CenterCrop(SIDE)
    stores = [fastdata.prep(root, folder / f"{k}.fds", codec="rgb").out for k, root in enumerate((train, test))]
    images, held_out = (fastdata.RAMDataset(store, crop=crop) for store, crop in zip(stores, crops, strict=True))
    images.hflip = 0.5
    first = fastdata.Loader(images, BATCH, shuffle=True, drop_last=True, seed=seed, num_workers=WORKERS)
    return first, fastdata.Loader(held_out, BATCH, num_workers=WORKERS), fastdata.GPUNormalize(MEAN, STD)


def network(classes: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 128), nn.Flatten(), nn.Linear(2048, classes))


def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
    model.eval()
    with torch.inference_mode():
        right = torch.cat([model(images).argmax(1) == targets for images, targets in batches])
    return right.float().mean().item()


def run(feed: Any, args: argparse.Namespace, seed: int) -> list[tuple[float, float]]:
    """Return (seconds, accuracy) after each epoch. The seconds are those of preparing and training, without the evaluations."""
    started, evaluating = time.perf_counter(), 0.0
    batches, held_out, normalize = feed(args.train, args.test, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(normalize, network(len(list(args.train.iterdir())))).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=len(batches))
    curve = []
    for _ in range(args.epochs):
        model.train()
        for images, targets in batches:
            optimizer.zero_grad()
            cross_entropy(model(images), targets).backward()
            optimizer.step()
            schedule.step()
        trained = time.perf_counter()
        curve.append((trained - started - evaluating, accuracy(model, held_out)))
        evaluating += time.perf_counter() - trained
    return curve


def draw(curves: dict[str, list[list[tuple[float, float]]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.0), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds of preparing and training", ylabel="accuracy on held-out images, %")
    for (name, runs), color in zip(curves.items(), ("#1a73e8", "#e8710a"), strict=True):
        for k, curve in enumerate(runs):
            seconds, right = zip(*curve, strict=True)
            axes.plot(seconds, [100 * value for value in right], color=color, linewidth=1.2, label=name if k == 0 else None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, metavar="TRAIN")
    parser.add_argument("test", type=Path, metavar="TEST")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    feeds = {"fastdata": fed_by_fastdata, "Pillow in torch's DataLoader": fed_by_torch}
    curves: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in feeds}
    for seed in range(args.seeds):
        for name, feed in feeds.items():
            curves[name].append(run(feed, args, seed))
            print(f"{name}, seed {seed}: {curves[name][-1][-1][1]:.1%} after {curves[name][-1][-1][0]:.1f} s", flush=True)
    if args.picture:
        draw(curves, args.picture)


if __name__ == "__main__":
    main()
