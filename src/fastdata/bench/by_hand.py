"""The hand-written contestant: a torch Dataset with cv2 in torch's DataLoader, used as its manual recommends.

It reads the memory-mapped store, which saves opening a file for each image: an advantage for it.
"""

from __future__ import annotations

import math
import random
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastdata.bench.loaders import AHEAD, HFLIP, Streamed, Task
from fastdata.codecs.pixels import decode_record
from fastdata.images.records import StoreImages
from fastdata.loader.fetch import quiet_worker

__all__ = ["ByHand", "by_hand", "random_box"]

Array = np.ndarray[Any, np.dtype[Any]]


class ByHand(Dataset[tuple[torch.Tensor, Any]]):
    """A hand-written dataset: decodes with cv2, crops and flips at random, and returns a tensor [C, H, W]."""

    def __init__(self, task: Task) -> None:
        self.records = StoreImages(task.path, task.size)
        self.crop = task.crop

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image = self._decode(index)
        top, left, h, w = random_box(*image.shape[:2])
        image = cv2.resize(image[top : top + h, left : left + w], (self.crop, self.crop))
        if image.ndim == 2:
            image = image[:, :, None]
        if random.random() < HFLIP:
            image = image[:, ::-1]
        target = self.records.targets[index]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), int(target) if target.ndim == 0 else target

    def _decode(self, index: int) -> Array:
        data, form = self.records.get(index), self.records.form
        if form.codec == "rgb":
            return decode_record(data, form, *(int(side[0]) for side in self.records.sides(np.array([index]))))
        flags = cv2.IMREAD_UNCHANGED if form.channels == 1 else cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        return image if form.channels == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)  # type: ignore[no-any-return]


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) as torchvision's RandomResizedCrop.get_params does with its defaults."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def by_hand(task: Task, workers: int, image_bytes: float) -> Streamed:
    """Return torch's DataLoader over the hand-written dataset, as a contestant."""
    dataset = ByHand(task)

    def make() -> DataLoader[Any]:
        return DataLoader(
            dataset,
            task.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=AHEAD,
            worker_init_fn=quiet_worker,
        )

    name = f"DataLoader + cv2, {workers} worker{'s' * (workers != 1)}"
    return Streamed(name, "other", make, workers, image_bytes=image_bytes)
