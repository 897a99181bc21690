"""`fastdata doctor`: what is measured for a path, and for the names of a user's functions."""

from __future__ import annotations

import importlib
import io
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastdata.bench.doctor import TOTAL_S, Diagnosis, doctor, loader_rate
from fastdata.bench.loaders import BATCH, CROP, find_task, random_box
from fastdata.errors import FastDataError
from fastdata.loader.loader import Loader
from fastdata.prepare.functions import prep
from fastdata.sources.base import read_source
from fastdata.sources.listing import list_sources
from fastdata.store.files import is_store
from fastdata.system.machine import available_cores

__all__ = ["examine"]

RESIZED = 256 / 224  # side of the stored images of a folder to that of the crops
SAMPLES = 300  # of a folder that are prepared
MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def examine(
    path: str | None,
    *,
    loader: str | None = None,
    model: str | None = None,
    size: int | None = None,
    crop: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    seconds: float = TOTAL_S,
) -> Diagnosis:
    """Diagnose a store, a SOURCE of images, or a user's loader; see `fastdata doctor --help`.

    Raises:
        ValueError: an option is wrong.
        StoreError: the store holds no images.
    """
    if path is None and loader is None:
        raise ValueError("there is nothing to measure: give a store, a folder of images, or --loader MODULE:FUNCTION")
    if loader is not None and (size or crop or batch_size or workers is not None):
        raise ValueError("--size, --crop, --batch-size and --workers are about a loader that doctor makes: leave them out")
    step = None if model is None else _call(model, "--model")
    if loader is not None:
        return doctor(_call(loader, "--loader"), step, seconds=seconds)
    path, workers = str(path), available_cores() if workers is None else workers
    if is_store(Path(path)):
        return doctor(_loader(path, size, crop, batch_size, workers), step, seconds=seconds)
    images = ImageFiles(path, crop or CROP)
    files: DataLoader[Any] = DataLoader(images, min(batch_size or BATCH, len(images)), shuffle=True, num_workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        made = prep(path, Path(folder, "o.fds"), size=size or round(images.crop * RESIZED), limit=SAMPLES)
        rate = loader_rate(_loader(str(made.out), None, images.crop, batch_size, workers), workers, seconds / 10)
    found = doctor(files, step, seconds=seconds)
    name = f"ImageFolder in torch's DataLoader, with RandomResizedCrop({images.crop}) and float32"
    return replace(found, subject=name, prepared=rate)


def _call(name: str, option: str) -> Any:
    """Call the function that `name` means, as "module:function", and return its result. The working folder is searched too."""
    module, _, function = name.partition(":")
    if not module or not function.isidentifier():
        raise ValueError(f"{option} is {name!r}, but must be MODULE:FUNCTION, such as train:make_loader")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ValueError(f"{option} is {name!r}, but the module {module!r} has no function {function!r}")
    return found()


def _loader(path: str, size: int | None, crop: int | None, batch_size: int | None, workers: int) -> Loader:
    task = find_task(path, size, crop, batch_size)
    return Loader(task.dataset(), task.batch_size, shuffle=True, num_workers=workers)


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """The images of a SOURCE, as torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize
    makes them: float32 [3, crop, crop]. An image that cannot be read is black."""

    def __init__(self, source: str, crop: int) -> None:
        found = list_sources(source)
        self.root, self.crop = found.root, crop
        self.sources = [one for one in found.sources if not one.problem]
        if not self.sources:
            raise FastDataError(f"{source} has no image that can be read, so there is nothing to measure")

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(read_source(self.root, self.sources[index]))).convert("RGB")
        except Exception:  # noqa: BLE001  whatever Pillow raises for a bad file
            image = Image.new("RGB", (self.crop, self.crop))
        top, left, height, width = random_box(image.height, image.width)
        image = image.crop((left, top, left + width, top + height)).resize((self.crop, self.crop), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255).sub_(MEAN).div_(STD), 0
