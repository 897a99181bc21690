"""torch's DataLoader over JPEG files, as its manual recommends it; variant: cv2 or pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
from contestant import Array, Batches, Spec, caption, chooser, cv2_sampler, main, read
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[Any]):
    def __init__(self, spec: Spec) -> None:
        self.paths, self.spec = spec.paths(), spec
        self.captions = np.stack([caption(k) for k in range(spec.count)]) if spec.captions else None
        self.sample: Callable[[bytes, int], Array] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if self.sample is None:
            self.sample = (cv2_sampler if self.spec.variant == "cv2" else pillow_sampler)(self.spec)
        image = self.sample(read(self.paths[index]), index)
        return (image, index) if self.captions is None else (image, index, self.captions[index])


def pillow_sampler(spec: Spec) -> Callable[[bytes, int], Array]:
    """Pillow as torchvision uses it: a full decode, a crop, an antialiased bilinear resize."""
    from PIL import Image

    choose, side = chooser(spec), (spec.side, spec.side)

    def sample(data: bytes, number: int) -> Array:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        top, left, h, w = choose(number, image.height, image.width)
        part = image.crop((left, top, left + w, top + h))
        return np.asarray(part if part.size == side else part.resize(side, Image.Resampling.BILINEAR))

    return sample


def quiet(_: int) -> None:
    cv2.setNumThreads(1)


def make(spec: Spec) -> Batches:
    torch.manual_seed(spec.seed)
    loader: Any = DataLoader(
        Files(spec), spec.batch, shuffle=True, num_workers=spec.workers, persistent_workers=True, worker_init_fn=quiet
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    main(make, ("torch", "opencv-python-headless", "pillow"))
