"""python examples/train_segmentation.py IMAGES MASKS [--out segmentation]

Train a segmentation network on a folder of street scenes (or anything else) and a folder of masks with the same file names:
prepare, split, train, test on the held-out images, and draw the predictions.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from fastdata import GPUNormalize, Loader, MaskDataset, RandomResizedCrop, Resize, prep

IGNORE = 255  # the class of pixels outside an image


class Net(nn.Module):
    """A U-Net: down to an eighth in three steps and up again, with skip connections."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (24, 48, 96, 128)) -> None:
        super().__init__()
        self.normalize = GPUNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths[:-1]), widths, strict=True))
        self.up = nn.ModuleList(block(a + b, b) for b, a in reversed(list(pairwise(widths))))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = self.normalize(images), []
        for k, step in enumerate(self.down):
            x = step(x if k == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for step, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = step(torch.cat([interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False), skip], 1))
        scores: Tensor = self.head(x)
        return scores


def block(channels: int, out: int) -> nn.Module:
    layers = [[nn.Conv2d(a, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()] for a in (channels, out)]
    return nn.Sequential(*layers[0], *layers[1])


def train(model: nn.Module, loader: Loader, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * len(loader))
    started = time.monotonic()
    for epoch in range(epochs):
        for images, masks in loader:
            loss = cross_entropy(model(images), masks.long(), ignore_index=IGNORE)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        if epoch % 10 == 9:
            print(f"  epoch {epoch + 1}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s")


@torch.no_grad()
def test(model: nn.Module, loader: Loader, commonest: int) -> tuple[float, float]:
    """Return the pixel accuracy of the model, and that of always predicting the commonest class."""
    model.eval()
    right = plain = total = 0
    for images, masks in loader:
        found, known = model(images).argmax(1), masks != IGNORE
        right += int((found == masks)[known].sum())
        plain += int((masks == commonest)[known].sum())
        total += int(known.sum())
    return right / total, plain / total


@torch.no_grad()
def draw(model: nn.Module, dataset: MaskDataset, path: Path, rows: int = 4) -> None:
    """Draw images, their masks and the predictions side by side."""
    colors = cv2.applyColorMap((np.arange(256) * 41 % 256).astype(np.uint8), cv2.COLORMAP_HSV).reshape(256, 3)
    strips = []
    for k in range(min(rows, len(dataset))):
        image, mask = dataset[k]
        found = model(image[None])[0].argmax(0).numpy()
        strips.append(np.hstack([image.permute(1, 2, 0).numpy()[:, :, ::-1], colors[mask.numpy()], colors[found]]))
    cv2.imwrite(str(path), np.vstack(strips))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("masks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("segmentation"))
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    store = args.out / "scenes.fds"
    made = prep(args.images, store, masks=args.masks, size=180)
    print(f"{made.kept} of {made.inputs} scenes prepared")

    torch.manual_seed(0)
    training, held_out = MaskDataset(store, crop=RandomResizedCrop(128, scale=(0.2, 1.0)), hflip=0.5).split(0.75, seed=0)
    held_out = held_out.with_crop(Resize((176, 240)))
    pixels = training.class_pixels
    print(f"{len(training)} scenes to train on, {len(held_out)} held out; {len(pixels)} classes")
    model = Net(max(pixels) + 1)
    with Loader(training, 8, shuffle=True, drop_last=True, num_workers=1) as loader:
        train(model, loader, args.epochs)
    right, plain = test(model, Loader(held_out, 8, num_workers=0), max(pixels, key=lambda k: pixels[k]))
    draw(model, held_out, args.out / "scenes.png")
    print(f"{right:.1%} of the pixels of held-out scenes are correct; {plain:.1%} if all are predicted as the commonest class")
    print(f"{args.out / 'scenes.png'}: scene, mask and prediction")


if __name__ == "__main__":
    main()
