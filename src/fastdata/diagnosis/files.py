"""Image files as most training scripts read them, to be compared with a store: Pillow, a random crop, float32."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastdata.bench.by_hand import random_box
from fastdata.diagnosis.subject import Torchs
from fastdata.errors import FastDataError
from fastdata.sources.base import read_source
from fastdata.sources.listing import list_sources

__all__ = ["subject_of_files"]

MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
TRIES = 16  # images in a row that may be unreadable


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """The images of a SOURCE, as torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize
    makes them: float32 [3, crop, crop]. In place of an image that cannot be read comes the next one that can.

    Raises:
        PrepError: there are no images.
    """

    def __init__(self, source: str | os.PathLike[str], crop: int) -> None:
        if (train := Path(source) / "train").is_dir():
            raise FastDataError(f"{os.fspath(source)} holds several splits, of which doctor measures one: give {train}")
        found = list_sources(source)
        self.root, self.crop = found.root, crop
        self.sources = [one for one in found.sources if not one.problem]
        if not self.sources:
            raise FastDataError(f"{os.fspath(source)} has no image that can be read, so there is nothing to measure")

    def __len__(self) -> int:
        return len(self.sources)

    def data(self, index: int) -> bytes:
        return read_source(self.root, self.sources[index])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for place in range(index, index + TRIES):
            try:
                return self._sample(place % len(self))
            except Exception as error:  # noqa: BLE001  whatever Pillow raises for a bad file
                problem = error
        raise FastDataError(f"{self.sources[index].name} and the {TRIES - 1} images after it cannot be read: {problem}")

    def _sample(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        image = Image.open(io.BytesIO(self.data(index))).convert("RGB")
        top, left, height, width = random_box(image.height, image.width)
        image = image.crop((left, top, left + width, top + height)).resize((self.crop, self.crop), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        tensor = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255).sub_(MEAN).div_(STD)
        label = self.sources[index].label
        return tensor, label if isinstance(label, int) else 0


def subject_of_files(source: str | os.PathLike[str], crop: int, batch_size: int, workers: int) -> Torchs:
    """Return torch's DataLoader over the images of a SOURCE."""
    pictures = Pictures(source, crop)
    found = Torchs(DataLoader(pictures, min(batch_size, len(pictures)), shuffle=True, num_workers=workers))
    found.name = f"ImageFolder in torch's DataLoader, with RandomResizedCrop({crop}) and float32"
    return found
