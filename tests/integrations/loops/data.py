"""The data of the loops: what each loop had before, made by torch's DataLoader and Pillow, and fastdata's in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fastdata import CenterCrop, GPUNormalize, Loader
from fastdata import open as open_store

SIDE = 24
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Folder(Dataset[Any]):
    """Images of class folders, as ImageFolder with Resize, CenterCrop, ToTensor and Normalize."""

    def __init__(self, root: Path, transforms: Any = (lambda image: image,)) -> None:
        self.paths = sorted(root.glob("*/*.png"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.transforms = transforms

    def __len__(self) -> int:
        return len(self.paths)

    def pixels(self, index: int) -> np.ndarray[Any, Any]:
        """The centre of an image, uint8 [24, 24, 3]."""
        image = np.asarray(Image.open(self.paths[index]))
        top, left = (round((side - SIDE) / 2) for side in image.shape[:2])
        return image[top : top + SIDE, left : left + SIDE]

    def __getitem__(self, index: int) -> Any:
        views = [normalized(transform(self.pixels(index))) for transform in self.transforms]
        return views[0] if len(views) == 1 else views, self.classes.index(self.paths[index].parent.name)


def normalized(pixels: np.ndarray[Any, Any]) -> torch.Tensor:
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
    return (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def loader(path: str, root: Path, batch_size: int, sampler: Any = None, collate: Any = None, **options: Any) -> Any:
    """The loop's own loader (path: "original"), or a Loader of the store beside the images.

    collate: of a batch that torch's default_collate has made, as the loops do it.
    """
    if path == "original":
        put = (lambda rows: collate(*torch.utils.data.default_collate(rows))) if collate else None
        own = torch.Generator()  # else torch's own would be drawn from when a pass begins
        return DataLoader(Folder(root / "images"), batch_size, sampler=sampler, collate_fn=put, generator=own, **options)
    batch_transform = [GPUNormalize(MEAN, STD), *([lambda batch: collate(*batch)] if collate else [])]
    dataset = open_store(root / "images.fds", crop=CenterCrop(SIDE))
    return Loader(dataset, batch_size, sampler=sampler, batch_transform=batch_transform, num_workers=1, **options)
