"""Train an image encoder without labels, as SimCLR does, and compare it with raw pixels by a linear probe.

    python examples/train_ssl.py TRAIN TEST [--epochs 20]

TRAIN and TEST are stores made by fastdata-prep, or folders with a folder of images for each class, such as CIFAR-10, which are
prepared first. The encoder learns from two views of each image of TRAIN; labels are used by the probes only. A probe is ridge
regression from features to classes, fitted on TRAIN and judged on TEST.

SimCLR: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", https://arxiv.org/abs/2002.05709
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from fastdata import CenterCrop, GPUNormalize, Loader, RAMDataset, RandomResizedCrop, Trainer, prep
from fastdata.optim import cosine

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RIDGE = 1e-2  # of the mean variance of the features


class SimCLR(nn.Module):
    """An encoder, and the projection that the loss compares."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.normalize = GPUNormalize(MEAN, STD)
        self.encoder = nn.Sequential(
            *stage(3, width),
            *stage(width, 2 * width),
            *stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.project = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 64))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of a batch, [B, 4 * width]."""
        return self.encoder(self.normalize(images))


def stage(channels: int, out: int) -> list[nn.Module]:
    """Return layers that halve the sides."""
    return [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), *block(out)]


def block(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def distorted(images: Tensor) -> Tensor:
    """Change brightness, contrast and colours of each image at random; make a fifth of them grey. uint8 [B, 3, H, W]."""
    factors = 1 + 0.4 * (2 * torch.rand(3, len(images), 3, 1, 1, device=images.device) - 1)
    brightness, contrast, balance = factors[0][:, :1], factors[1][:, :1], 1 + (factors[2] - 1) / 2
    pixels = images.float()
    mean = pixels.mean((1, 2, 3), keepdim=True)
    pixels = ((pixels - mean) * contrast + mean) * brightness * balance
    grey = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.2
    return torch.where(grey, pixels.mean(1, keepdim=True), pixels).round().clamp(0, 255).to(torch.uint8)


def contrastive_loss(model: Any, batch: Any) -> Tensor:
    """Return NT-Xent for each image: among all other views of the batch, find the other view of the same image."""
    (one, other), _ = batch
    views = normalize(model.project(model(distorted(torch.cat([one, other])))), dim=1)
    similarity = (views @ views.T / 0.2).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(views), device=views.device).roll(len(one))
    return cross_entropy(similarity, partner, reduction="none").view(2, -1).mean(0)


def features(dataset: Any, encode: Any) -> tuple[Tensor, Tensor]:
    """Return the features of all images, [n, F], and their classes."""
    rows = [(encode(images).flatten(1).double(), targets) for images, targets in Loader(dataset, 256)]
    return torch.cat([found for found, _ in rows]), torch.cat([targets for _, targets in rows])


@torch.no_grad()
def probe(train: Any, test: Any, encode: Any) -> float:
    """Return the accuracy on `test` of a ridge regression from the features of `train` to its classes."""
    (x, classes), (unseen, wanted) = features(train, encode), features(test, encode)
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x, unseen = (x - mean) / scale, (unseen - mean) / scale
    wide = one_hot(classes, len(train.classes)).double()
    weights = torch.linalg.solve(x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ (wide - wide.mean(0)))
    return ((unseen @ weights + wide.mean(0)).argmax(1) == wanted).double().mean().item()


def opened(source: Path, side: int, out: Path) -> RAMDataset:
    """Open a store, or prepare a folder."""
    store = source if (source / "manifest.json").is_file() else prep(source, out / f"{source.name}.fds", size=side, codec="rgb").out
    return RAMDataset(store, crop=CenterCrop(side))


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    train, test = (opened(source, args.side, args.out) for source in (args.train, args.test))
    views = train.with_crop([RandomResizedCrop(args.side, scale=(0.2, 1))] * 2, hflip=0.5)
    model = SimCLR(args.width)
    raw, untrained = probe(train, test, lambda images: images.float()), probe(train, test, model.eval())
    started = time.perf_counter()
    with Loader(views, args.batch_size, shuffle=True, drop_last=True, seed=args.seed) as loader:
        trainer = Trainer(model, contrastive_loss, torch.optim.AdamW(model.parameters(), 1e-3), scheduler=cosine(warmup=20))
        trainer.fit(loader, epochs=args.epochs)
    took = time.perf_counter() - started
    learnt = probe(train, test, model.eval())
    print(
        f"linear probe, of {len(test)} images: {learnt:.1%} after {took:.0f} s of training, {untrained:.1%} without any, ", end=""
    )
    print(f"{raw:.1%} from raw pixels")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, metavar="TRAIN")
    parser.add_argument("test", type=Path, metavar="TEST")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--side", type=int, default=32, help="side of the images, in pixels")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the stores")
    return parser.parse_args()


if __name__ == "__main__":
    main()
