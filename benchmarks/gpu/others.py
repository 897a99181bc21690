"""Loaders that are not ours, each as its own manual advises, on the same JPEG files: batches of uint8 on the device.

Every one yields (images [n, C, H, W] or [n, H, W, C], numbers of the files, boxes or None) for ever, epoch after epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from part import Setting
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)

Delivered = tuple[Tensor, Any, Any]


class Files(Dataset[tuple[Tensor, int, Tensor]]):
    """Pillow decodes, torchvision draws the box and resizes, antialiased: its reference recipe without the flip."""

    def __init__(self, paths: list[str], side: int) -> None:
        from torchvision.transforms import v2

        self.paths, self.side, self.crop, self.functional = paths, side, v2.RandomResizedCrop(side, SCALE, RATIO), v2.functional

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Tensor, int, Tensor]:
        from PIL import Image

        image = Image.open(self.paths[number]).convert("RGB")
        box = self.crop.make_params([image])
        done = self.functional.resized_crop(image, **box, size=[self.side, self.side], antialias=True)
        return self.functional.pil_to_tensor(done), number, _four(box)


def torchvision_pillow(setting: Setting, paths: list[str], rows: int, side: int) -> Iterator[Delivered]:
    """Processes with Pillow under torch's DataLoader, page-locked, copied without waiting."""
    loader: Any = DataLoader(
        Files(paths, side), rows, shuffle=True, num_workers=setting.workers, pin_memory=setting.cuda, persistent_workers=True
    )
    while True:
        for images, numbers, boxes in loader:
            yield images.to(setting.device, non_blocking=True), numbers, boxes


def torchvision_nvjpeg(setting: Setting, paths: list[str], rows: int, side: int) -> Iterator[Delivered]:
    """torchvision's decode_jpeg of whole batches on the device, and crops there; threads read the files ahead."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(side, SCALE, RATIO, antialias=True)
    generator = torch.Generator().manual_seed(0)
    with ThreadPoolExecutor(4) as pool:

        def read() -> Iterator[tuple[Tensor, Any]]:
            while True:
                for numbers in torch.randperm(len(paths), generator=generator).split(rows):
                    yield numbers, pool.map(read_file, [paths[k] for k in numbers.tolist()])

        batches = read()
        ahead = next(batches)
        while True:
            (numbers, files), ahead = ahead, next(batches)
            images = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=setting.device)
            boxes = [crop.make_params([image]) for image in images]
            done = [
                v2.functional.resized_crop(a, **b, size=[side, side], antialias=True) for a, b in zip(images, boxes, strict=True)
            ]
            yield torch.stack(done), numbers, torch.stack([_four(box) for box in boxes])


def dali(setting: Setting, paths: list[str], rows: int, side: int) -> Iterator[Delivered]:
    """DALI's file reader and image_random_crop, decoded by the GPU where there is one."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(
        batch_size=rows, num_threads=setting.workers, device_id=0 if setting.cuda else None, seed=0, prefetch_queue_depth=2
    )
    def pipeline() -> Any:
        data, numbers = fn.readers.file(files=paths, labels=list(range(len(paths))), random_shuffle=True, name="files")
        device = "mixed" if setting.cuda else "cpu"
        images = fn.decoders.image_random_crop(data, device=device, random_area=list(SCALE), random_aspect_ratio=list(RATIO))
        return fn.resize(images, size=(side, side), interp_type=types.INTERP_LINEAR, antialias=True), numbers

    pipe: Any = pipeline()
    pipe.build()
    for (found,) in DALIGenericIterator([pipe], ["images", "numbers"]):  # without a size it has no end
        yield found["images"], found["numbers"].flatten(), None


def _four(box: dict[str, int]) -> Tensor:
    return torch.tensor([box["top"], box["left"], box["height"], box["width"]])
