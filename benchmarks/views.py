"""Two global and eight local views of each image, with DINO's transforms: the Loader beside a DataLoader written by hand.

    python benchmarks/views.py PHOTOS [--size 256] [--images 1024] [--rounds 5] [--workers 2] [--only-crops]

PHOTOS is a folder of JPEG files. Both read the same images, resized once to a short side of SIZE: the DataLoader as JPEG files of
quality 90, which it decodes whole with cv2. Both cut, resize (antialias=False, which is cv2's bilinear) and flip by the same rules,
and call the same functions of numpy and cv2: colours, grey, blur and solarize of main_dino.py. Epochs take turns, each with workers
of its own; the first round does not count. Then both are measured in one process, with the time inside the transforms.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata import LMDBDataset, Loader, MultiCrop, View

Array = np.ndarray[Any, np.dtype[Any]]

SCALES = [(0.4, 1.0)] * 2 + [(0.05, 0.4)] * 8
SIDES = [224] * 2 + [96] * 8
BATCH = 64
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
in_transforms = [0.0]  # seconds of this process


class Dino:
    """The transforms of one view of main_dino.py after its crop and flip: jitter, grey, blur, solarize."""

    def __init__(self, blur: float, solarize: float) -> None:
        self.blur, self.solarize = blur, solarize

    def __call__(self, image: Array) -> Array:
        started = time.perf_counter()
        if random.random() < 0.8:
            image = jitter(image)
        if random.random() < 0.2:
            image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        if random.random() < self.blur:
            image = cv2.GaussianBlur(image, (0, 0), random.uniform(0.1, 2.0))
        if random.random() < self.solarize:
            image = np.where(image < 128, image, 255 - image)
        in_transforms[0] += time.perf_counter() - started
        return image


def jitter(image: Array) -> Array:
    """ColorJitter(0.4, 0.4, 0.2, 0.1): the first three are linear in the colours, so one matrix does all; hue turns them in HSV."""
    brightness, contrast, saturation = random.uniform(0.6, 1.4), random.uniform(0.6, 1.4), random.uniform(0.8, 1.2)
    matrix = np.eye(3, dtype=np.float32) * saturation + (1 - saturation) * LUMA
    offset = (1 - contrast) * brightness * (cv2.mean(image)[:3] @ LUMA)
    affine = np.concatenate([matrix * brightness * contrast, np.full((3, 1), offset)], axis=1)
    hsv = cv2.cvtColor(cv2.transform(image, affine), cv2.COLOR_RGB2HSV)
    hsv[..., 0] = cv2.LUT(hsv[..., 0], ((np.arange(256) + random.randint(-18, 18)) % 180).astype(np.uint8))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def transforms(only_crops: bool) -> list[Dino | None]:
    return [None] * 10 if only_crops else [Dino(1.0, 0.0), Dino(0.1, 0.2), *[Dino(0.5, 0.0)] * 8]


class Files(Dataset[Any]):
    """What one writes by hand: decode with cv2, then the same crops and transforms for each view."""

    def __init__(self, paths: list[Path], only_crops: bool) -> None:
        self.paths, self.transforms = paths, transforms(only_crops)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[list[torch.Tensor], int]:
        image = cv2.imread(str(self.paths[index]), cv2.IMREAD_COLOR_RGB)
        assert image is not None
        height, width = image.shape[:2]
        views = []
        for side, scale, transform in zip(SIDES, SCALES, self.transforms, strict=True):
            area = height * width * random.uniform(*scale)
            ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = min(round(np.sqrt(area * ratio)), width), min(round(np.sqrt(area / ratio)), height)
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            view = cv2.resize(image[top : top + h, left : left + w], (side, side), interpolation=cv2.INTER_LINEAR)
            view = cv2.flip(view, 1) if random.random() < 0.5 else view
            views.append(torch.from_numpy(transform(view) if transform else view).permute(2, 0, 1))
        return views, 0


def one_thread(worker: int) -> None:
    cv2.setNumThreads(1)


def make(photos: Path, folder: Path, size: int, count: int) -> tuple[Path, list[Path]]:
    """Write the images as files, and a store of the same pixels."""
    found = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    (folder / "files").mkdir()
    paths = []
    for k in range(count):
        image = cv2.imread(str(found[k % len(found)]))
        assert image is not None
        scale = size / min(image.shape[:2])
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        paths.append(folder / "files" / f"{k:05d}.jpg")
        cv2.imwrite(str(paths[-1]), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
    return fastdata.prep(folder / "files", folder / "store.fds").out, paths


def rate(batches: Any) -> float:
    """Return the images a second of an epoch, from its second batch on: workers have started, and few batches were made ahead."""
    started, images = 0.0, 0
    for views, _ in batches:
        assert [tuple(view.shape[1:]) for view in views] == [(3, side, side) for side in SIDES]
        images += len(views[0]) if started else 0
        started = started or time.perf_counter()
    return images / (time.perf_counter() - started)


def contestants(store: Path, paths: list[Path], workers: int, only_crops: bool) -> dict[str, Callable[[], Any]]:
    crops = MultiCrop(224, 96, antialias=False)
    views = [View(crop, transform=transform) for crop, transform in zip(crops, transforms(only_crops), strict=True)]
    dataset, files = LMDBDataset(store, crop=views, hflip=0.5), Files(paths, only_crops)
    return {
        "fastdata": lambda: Loader(dataset, BATCH, shuffle=True, num_workers=workers),
        "DataLoader, cv2": lambda: DataLoader(files, BATCH, shuffle=True, num_workers=workers, worker_init_fn=one_thread),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-crops", action="store_true", help="without the transforms")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, paths = make(given.photos, Path(folder), given.size, given.images)
        with_workers = contestants(store, paths, given.workers, given.only_crops)
        rates: dict[str, list[float]] = {name: [] for name in with_workers}
        for number in range(given.rounds + 1):
            for name, make_loader in with_workers.items():
                found = rate(make_loader())
                rates[name] += [found] if number else []
        ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
        for name, values in rates.items():
            print(f"{name}: {statistics.median(values):,.0f} images/s ({min(values):,.0f} to {max(values):,.0f})")
        print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        cv2.setNumThreads(1)
        torch.set_num_threads(1)
        for name, make_loader in contestants(store, paths, 0, given.only_crops).items():
            rate(make_loader())
            in_transforms[0] = 0.0
            whole = 1000 / rate(make_loader())
            inside = 1000 * in_transforms[0] / len(paths)
            print(
                f"{name}, one process: {whole:.2f} ms an image, of which {inside:.2f} in the transforms, {whole - inside:.2f} else"
            )


if __name__ == "__main__":
    main()
