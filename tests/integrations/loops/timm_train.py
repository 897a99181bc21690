"""The loop of timm's train.py: PrefetchLoader, Mixup until --mixup-off-epoch, ModelEmaV3, a scheduler in updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from timm.data import Mixup
from timm.data.loader import PrefetchLoader, fast_collate
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from data import MEAN, SIDE, STD, Folder
from fastdata import CenterCrop, Loader
from fastdata import open as open_store


class Pixels(Folder):
    """As timm's datasets: uint8 [C, H, W], which PrefetchLoader normalizes."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.pixels(index).transpose(2, 0, 1), self.classes.index(self.paths[index].parent.name)


def main(path: str, root: Path, epochs: int = 3, mixup_off_epoch: int = 2) -> list[float]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  timm draws from it
    dataset: Dataset = Pixels(root / "images")
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    if path == "original":
        loader = DataLoader(dataset, 4, sampler=sampler, collate_fn=fast_collate, drop_last=True)
    else:
        loader = Loader(open_store(root / "images.fds", crop=CenterCrop(SIDE)), 4, sampler=sampler, drop_last=True, num_workers=1)
    loader_train = PrefetchLoader(loader, MEAN, STD, device=torch.device("cpu"))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = CosineLRScheduler(optimizer, t_initial=epochs * len(loader_train), warmup_t=2, t_in_epochs=False)
    mixup_fn, ema, seen, updates = Mixup(mixup_alpha=0.4, num_classes=3), ModelEmaV3(model, decay=0.9), [], 0
    for epoch in range(epochs):
        if epoch >= mixup_off_epoch:
            mixup_fn.mixup_enabled = False
        for input, target in loader_train:
            mixed, soft = mixup_fn(input, target)
            loss = SoftTargetCrossEntropy()(model(mixed), soft)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model, step=updates)
            updates += 1
            scheduler.step_update(num_updates=updates)
            seen.append(loss.item())
        seen.append(sum(weight.abs().sum().item() for weight in ema.module.parameters()))
    return seen
