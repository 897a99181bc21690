"""The loop of torchvision's references/classification: mixup when batches are collated, label smoothing, EMA, warm-up."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2

from data import SIDE, Folder, loader


def main(path: str, root: Path, epochs: int = 3) -> list[float]:
    torch.manual_seed(0)
    dataset = Folder(root / "images")
    sampler = torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    mixup = v2.RandomChoice([v2.MixUp(num_classes=3, alpha=0.2), v2.CutMix(num_classes=3, alpha=1.0)])
    data_loader = loader(path, root, 4, sampler=sampler, collate=mixup)
    data_loader_test = loader(path, root, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 16), nn.ReLU(), nn.Linear(16, 3))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs - 1)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[1])
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    seen = list[float]()
    for _ in range(epochs):
        model.train()
        for k, (images, target) in enumerate(data_loader):
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if k % 2 == 0:
                ema.update_parameters(model)
            seen.append(loss.item())
        scheduler.step()
        for tested in (model, ema):
            tested.eval()
            with torch.inference_mode():
                outputs = [(tested(images), target) for images, target in data_loader_test]
            seen.append(sum(criterion(output, target).item() * len(target) for output, target in outputs) / len(dataset))
    return seen
