"""Train a small CLIP on drawn scenes and their captions, in about a minute on two CPU cores.

    python examples/train_clip.py [--scenes 4000] [--epochs 20] [--out clip-demo]

Draws pairs of shapes with captions such as "a small red circle left of a large blue square", writes PNG files and a CSV, prepares
both, and trains an image tower and a text tower to give a scene and its caption similar vectors. A tenth of all captions, with all
of their scenes, is held out. Prints how often the right one of the held-out captions is nearest to a held-out scene, or among the
five nearest.
"""

from __future__ import annotations

import argparse
import csv
import time
from itertools import pairwise, product
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Loader, RandomCrop, prep

COLORS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230), "yellow": (230, 210, 50), "white": (240, 240, 240)}
SHAPES, SIZES, PLACES = ("circle", "square", "triangle"), {"small": 5, "large": 9}, ("left of", "above")
OBJECTS = [" ".join(words) for words in product(SIZES, COLORS, SHAPES)]
VOCABULARY = sorted({*"a left of above".split(), *SIZES, *COLORS, *SHAPES})
SIDE, LENGTH, WIDTH, BATCH = 48, 10, 64, 128


def draw_scenes(folder: Path, table: Path, count: int) -> None:
    """Write scenes as PNG files, and a CSV of their paths and captions."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "caption"])
        for k in range(count):
            first, second = rng.choice(OBJECTS, 2)
            place = rng.choice(PLACES)
            along, across = rng.integers([16, 40], [21, 45]), rng.integers(16, 45, 2)  # the centres of the two shapes
            centers = np.stack([along, across] if place == "left of" else [across, along], axis=1)
            image = np.clip(rng.integers(30, 130, 3) + rng.normal(0, 12, (60, 60, 3)), 0, 255).astype(np.uint8)
            for words, center in zip((first, second), centers, strict=True):
                draw(image, words, center)
            cv2.imwrite(str(folder / f"{k:05d}.png"), image[:, :, ::-1])
            rows.writerow([f"{folder.name}/{k:05d}.png", f"a {first} {place} a {second}"])


def draw(image: np.ndarray, words: str, center: np.ndarray) -> None:
    """Draw a shape, such as "small red circle", at these pixels."""
    size, color, shape = words.split()
    if shape == "circle":
        cv2.circle(image, center.tolist(), SIZES[size], COLORS[color], -1, cv2.LINE_AA)
        return
    corners = {"square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)], "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)]}
    points = center + SIZES[size] * np.array(corners[shape])
    cv2.fillPoly(image, [points.round().astype(np.int32)], COLORS[color], cv2.LINE_AA)


def tokenize(captions: list[str]) -> Tensor:
    """Return the number of each word, int64 [n, LENGTH], with 0 after the last."""
    numbers = {word: k for k, word in enumerate(VOCABULARY, start=1)}
    rows = [[numbers[word] for word in caption.split()] for caption in captions]
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])


class CLIP(nn.Module):
    """Two towers that end in vectors of length 1, and the factor of their products."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 24, 48, WIDTH]
        convolutions = [conv(a, b) for a, b in pairwise(widths)]
        head = nn.Linear(WIDTH * (SIDE // 8) ** 2, WIDTH)
        self.image_tower = nn.Sequential(GPUNormalize(0.4, 0.25), *convolutions, nn.Flatten(), head)
        self.words, self.places = nn.Embedding(len(VOCABULARY) + 1, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.text_tower = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.tensor(10.0).log())

    def of_images(self, images: Tensor) -> Tensor:
        return normalize(self.image_tower(images), dim=1)

    def of_texts(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        words = self.text_tower(self.words(tokens) + self.places, src_key_padding_mask=padding)
        return normalize(words.masked_fill(padding[:, :, None], 0).sum(1), dim=1)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return how well each image goes with each text, [n, n]."""
        return self.scale.exp() * self.of_images(images) @ self.of_texts(tokens).T


def conv(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


def contrastive_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return CLIP's loss. Texts that occur more than once in the batch are all right for each other's images."""
    same = (tokens[:, None] == tokens).all(-1).float()
    right = same / same.sum(1, keepdim=True)
    return (cross_entropy(scores, right) + cross_entropy(scores.T, right)) / 2


def train(model: CLIP, loader: Loader, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, epochs * len(loader))
    started = time.monotonic()
    for epoch in range(1, epochs + 1):
        for images, captions in loader:  # uint8 [BATCH, 3, SIDE, SIDE] and a list of BATCH captions
            tokens = tokenize(captions)
            loss = contrastive_loss(model(images, tokens), tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"  epoch {epoch}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def ranks(model: CLIP, dataset: LMDBDataset) -> tuple[Tensor, int]:
    """Return how many other captions of the dataset are as near to each image as its own, and how many captions there are."""
    model.eval()
    captions = sorted(set(dataset.columns["caption"]))
    texts = model.of_texts(tokenize(captions))
    found = []
    for images, own in Loader(dataset, BATCH, num_workers=0):
        scores = model.of_images(images) @ texts.T
        right = scores[torch.arange(len(images)), [captions.index(caption) for caption in own]]
        found.append((scores >= right[:, None]).sum(1) - 1)  # without its own
    return torch.cat(found), len(captions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("clip-demo"))
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more gain little for such small towers
    draw_scenes(args.out / "scenes", args.out / "scenes.csv", args.scenes)
    made = prep(args.out / "scenes.csv", args.out / "scenes.fds", fields="caption", codec="rgb")
    print(f"{made.kept} of {made.inputs} scenes prepared")

    # No flips: "left of" would become wrong.
    dataset = LMDBDataset(args.out / "scenes.fds", crop=RandomCrop(SIDE), fields="caption")
    held_out_captions = sorted(set(dataset.columns["caption"]))[::10]
    held_out = np.isin(dataset.columns["caption"], held_out_captions)
    training, test = dataset.subset(~held_out), dataset.subset(held_out).with_crop(CenterCrop(SIDE))
    print(f"{len(training)} scenes to train on, {len(test)} held out")
    model = CLIP()
    with Loader(training, BATCH, shuffle=True, seed=0, drop_last=True) as loader:
        train(model, loader, args.epochs)
    before, count = ranks(model, test)
    recall = {k: (before < k).double().mean() for k in (1, 5)}
    print(f"the {len(test)} held-out scenes have {count} different captions, none of which was in training")
    for k, share in recall.items():
        print(f"recall@{k} {share:.1%}; by chance {k / count:.1%}")


if __name__ == "__main__":
    main()
