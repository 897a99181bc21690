"""Train a small detector on drawn scenes, in about a minute and a half on two CPU cores.

    python examples/train_detection.py [--scenes 1500] [--epochs 15] [--out detection-demo]

Draws circles, squares and triangles on textured backgrounds, writes PNG files and COCO's JSON, prepares both, and trains a detector
without anchors, after Objects as Points (Zhou et al., 2019): a heat map for each category has its peaks at the centres of objects,
where the distances to the four sides of the box are read. Prints the mean average precision at an IoU of 0.5 on held-out scenes,
and draws some of them with the boxes found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, logsigmoid, max_pool2d

from fastdata import GPUNormalize, LMDBDataset, Loader, RandomResizedCrop, Trainer, prep
from fastdata.optim import onecycle

CATEGORIES = ("circle", "square", "triangle")
SIDE, STRIDE, GRID = 96, 4, 24  # of scenes and of the network's output

Objects = tuple[Tensor, Tensor, Tensor]  # of an image: boxes [n, 4], categories [n], scores [n]


def draw_scenes(folder: Path, file: Path, count: int) -> None:
    """Write scenes as PNG files, and their objects as COCO's JSON."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], list[dict[str, Any]]()
    for k in range(count):
        coarse = rng.integers(30, 190, (6, 6, 3)).astype(np.float32)
        texture = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) + rng.normal(0, 15, (SIDE, SIDE, 3))
        scene = np.clip(texture, 0, 255).astype(np.uint8)
        taken = np.zeros((SIDE, SIDE), bool)
        for _ in range(rng.integers(0, 7)):
            category, radius = int(rng.integers(len(CATEGORIES))), rng.uniform(7, 18)
            corners = (32, 4, 3)[category]
            angles = 2 * np.pi * ((np.arange(corners) + 0.5) / corners + rng.uniform(-0.05, 0.05))
            points = rng.uniform(radius, SIDE - radius, 2) + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            x, y, width, height = box = cv2.boundingRect(points.round().astype(np.int32))
            if taken[y : y + height, x : x + width].any():
                continue
            taken[y : y + height, x : x + width] = True
            cv2.fillPoly(scene, [points.round().astype(np.int32)], rng.integers(0, 256, 3).tolist())
            annotations.append({"id": len(annotations), "image_id": k, "category_id": category, "bbox": box})
        cv2.imwrite(str(folder / f"{k:05d}.png"), scene)
        images.append({"id": k, "file_name": f"{k:05d}.png", "height": SIDE, "width": SIDE})
    categories = [{"id": k, "name": name} for k, name in enumerate(CATEGORIES)]
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


class Detector(nn.Module):
    """A small U-Net. Each cell of its grid has a logit for each category, and the distances to four sides of a box."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(GPUNormalize(0.5, 0.25), conv(3, 16, 2), conv(16, 32, 2), conv(32, 32))
        self.down = nn.Sequential(conv(32, 64, 2), conv(64, 64))
        self.up = conv(32 + 64, 48)
        self.head = nn.Conv2d(48, len(CATEGORIES) + 4, 1)
        nn.init.constant_(self.head.bias[: len(CATEGORIES)], -4)  # peaks are rare

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, categories, GRID, GRID], and distances in pixels to left, top, right and bottom, [B, 4, GRID, GRID]."""
        x = self.stem(images)
        out = self.head(self.up(torch.cat([x, interpolate(self.down(x), scale_factor=2)], 1)))
        return out[:, :-4], STRIDE * out[:, -4:].exp()


def conv(channels: int, out: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


def losses(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    """Return the sum of the losses of all objects, and their number."""
    images, found = batch
    logits, sides = model(images)
    boxes, categories, image = found["boxes"].values, found["category"].values, found["boxes"].rows
    sizes = boxes[:, 2:] - boxes[:, :2]
    cells = ((boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE).long()  # x and y of the centres

    steps = (torch.arange(GRID, device=boxes.device) - cells[:, :, None]) * STRIDE / sizes[:, :, None]  # [n, 2, GRID]
    bumps = torch.exp(-20 * (steps[:, 0, None, :] ** 2 + steps[:, 1, :, None] ** 2))  # 1 at the centres, [n, GRID, GRID]
    maps = (image * len(CATEGORIES) + categories)[:, None, None].expand_as(bumps)
    heat = torch.zeros_like(logits).flatten(0, 1).scatter_reduce(0, maps, bumps, "amax").view_as(logits)
    p = logits.sigmoid()
    at_peaks, elsewhere = (1 - p) ** 2 * logsigmoid(logits), (1 - heat) ** 4 * p**2 * logsigmoid(-logits)
    focal = -torch.where(heat == 1, at_peaks, elsewhere).sum()

    center = STRIDE * (cells + 0.5)
    wanted = torch.cat([center - boxes[:, :2], boxes[:, 2:] - center], 1).clamp(min=1)
    given = sides[image, :, cells[:, 1], cells[:, 0]]
    shared = torch.minimum(wanted, given)
    inner, a, b = ((d[:, 0] + d[:, 2]) * (d[:, 1] + d[:, 3]) for d in (shared, wanted, given))
    return focal - (inner / (a + b - inner)).log().sum(), len(boxes)


@torch.no_grad()
def detect(model: nn.Module, images: Tensor, most: int = 20) -> list[Objects]:
    """Return the objects of each image, those with the largest scores first."""
    logits, sides = model.eval()(images)
    peaks = logits.where(logits == max_pool2d(logits, 3, 1, 1), -torch.inf)
    scores, places = peaks.sigmoid().flatten(1).topk(most)
    categories, rows, columns = places // GRID**2, places // GRID % GRID, places % GRID
    near = sides[torch.arange(len(images))[:, None], :, rows, columns]
    center = STRIDE * (torch.stack([columns, rows], -1) + 0.5)
    boxes = torch.cat([center - near[..., :2], center + near[..., 2:]], -1).clamp(0, SIDE)
    return list(zip(boxes, categories, scores, strict=True))


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of each box of `a` with each of `b`, [len(a), len(b)]."""
    inner = (torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    return inner / (areas[0][:, None] + areas[1] - inner)


def mean_average_precision(found: list[Objects], truth: list[tuple[Tensor, Tensor]], iou: float = 0.5) -> float:
    """Return COCO's mAP at one IoU: the mean over the categories in `truth` of the precision at 101 recalls from 0 to 1.

    Args:
        found: of each image.
        truth: boxes and categories of each image.
    """
    results = []
    for category in torch.cat([categories for _, categories in truth]).unique():
        scores, hits, count = list[Tensor](), list[bool](), 0
        for (boxes, categories, sure), (true_boxes, true_categories) in zip(found, truth, strict=True):
            left = true_boxes[true_categories == category]
            count += len(left)
            chosen = categories == category
            order = sure[chosen].argsort(descending=True, stable=True)
            scores.append(sure[chosen][order])
            for box in boxes[chosen][order]:  # takes the object that it overlaps most, of those that are left
                best, place = overlaps(box[None], left)[0].max(0) if len(left) else (torch.tensor(0.0), 0)
                hits.append(bool(best >= iou))
                if hits[-1]:
                    left = torch.cat([left[:place], left[place + 1 :]])
        right = torch.tensor(hits)[torch.cat(scores).argsort(descending=True, stable=True)].cumsum(0)
        precision = (right / torch.arange(1, len(right) + 1)).flip(0).cummax(0).values.flip(0)  # the best at this recall or above
        place = torch.searchsorted(right.double() / count, torch.from_numpy(np.linspace(0, 1, 101)))
        results.append(torch.cat([precision, torch.zeros(1)])[place].mean())
    return float(torch.stack(results).mean())


def draw(path: Path, images: Tensor, found: list[Objects], names: Sequence[str], least: float = 0.3) -> None:
    """Draw scenes side by side, with the boxes whose scores are not small."""
    scenes = []
    for image, (boxes, categories, scores) in zip(images, found, strict=True):
        scene = cv2.resize(image.permute(1, 2, 0).numpy()[:, :, ::-1], None, fx=3, fy=3)
        for box, category in zip(boxes[scores > least], categories[scores > least], strict=True):
            x1, y1, x2, y2 = (3 * box).round().int().tolist()
            cv2.rectangle(scene, (x1, y1), (x2, y2), (255, 255, 255), 1)
            cv2.putText(scene, names[category], (x1 + 2, y1 + 12), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255))
        scenes.append(scene)
    cv2.imwrite(str(path), np.hstack(scenes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("detection-demo"))
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more gain little for such a small network
    draw_scenes(args.out / "scenes", args.out / "scenes.json", args.scenes)
    made = prep(args.out / "scenes", args.out / "scenes.fds", coco=args.out / "scenes.json", codec="rgb")
    print(f"{made.kept} of {made.inputs} scenes prepared")

    crop = RandomResizedCrop(SIDE, scale=(0.4, 1.0))
    dataset = LMDBDataset(args.out / "scenes.fds", crop=crop, hflip=0.5, fields=("boxes", "category"), min_visible=0.4)
    training, held_out = dataset.split(0.8, seed=0)
    held_out = held_out.with_crop(None)  # whole scenes
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    with Loader(training, 16, shuffle=True, seed=0, drop_last=True) as loader:
        Trainer(model, losses, optimizer, scheduler=onecycle()).fit(loader, epochs=args.epochs)

    found, truth = [], []
    for images, objects in Loader(held_out, 32, num_workers=0):
        found += detect(model, images)
        truth += zip(objects["boxes"], objects["category"], strict=True)
    draw(args.out / "scenes.png", images[:4], found[-len(images) :][:4], dataset.columns.names("category"))
    print(f"mAP {mean_average_precision(found, truth):.3f} at an IoU of 0.5, on {len(held_out)} held-out scenes")
    print(f"{args.out / 'scenes.png'}: some of them, with the boxes found")


if __name__ == "__main__":
    main()
