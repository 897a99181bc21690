"""The loop of DINO's main_dino.py: several views of each image, a student and a teacher, schedules for each iteration."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

from data import MEAN, SIDE, STD, Folder
from fastdata import CenterCrop, GPUNormalize, Loader, View
from fastdata import open as open_store

TRANSFORMS = [lambda image: image, lambda image: 255 - image, lambda image: image[::-1], lambda image: image // 2]


def views(path: str, root: Path, sampler: RandomSampler) -> DataLoader | Loader:
    if path == "original":
        return DataLoader(Folder(root / "images", TRANSFORMS), 4, sampler=sampler, drop_last=True)
    crops = [View(CenterCrop(SIDE), transform=transform) for transform in TRANSFORMS]
    dataset = open_store(root / "images.fds", crop=crops)
    return Loader(dataset, 4, sampler=sampler, drop_last=True, batch_transform=GPUNormalize(MEAN, STD), num_workers=1)


def main(path: str, root: Path, epochs: int = 2) -> list[float]:
    torch.manual_seed(0)
    sampler = RandomSampler(Folder(root / "images"), generator=torch.Generator().manual_seed(0))
    data_loader = views(path, root, sampler)
    student = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8))
    teacher, center = copy.deepcopy(student).requires_grad_(False), torch.zeros(1, 8)
    optimizer = torch.optim.AdamW(student.parameters())
    steps = epochs * len(data_loader)
    momentum = 1 - 0.004 * (np.cos(np.pi * np.arange(steps) / steps) + 1) / 2
    seen = list[float]()
    for epoch in range(epochs):
        for it, (images, _) in enumerate(data_loader, epoch * len(data_loader)):
            targets = F.softmax((teacher(torch.cat(images[:2])) - center) / 0.04, dim=-1).chunk(2)
            outputs = (student(torch.cat(images)) / 0.1).chunk(len(images))
            pairs = [(q, s) for k, q in enumerate(targets) for v, s in enumerate(outputs) if v != k]
            loss = sum((-q * F.log_softmax(s, dim=-1)).sum(-1).mean() for q, s in pairs) / len(pairs)
            optimizer.param_groups[0]["lr"] = 5e-4 * (it + 1) / steps
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for param_q, param_k in zip(student.parameters(), teacher.parameters(), strict=True):
                    param_k.mul_(momentum[it]).add_((1 - momentum[it]) * param_q)
                center = center * 0.9 + teacher(torch.cat(images[:2])).mean(0, keepdim=True) * 0.1
            seen.append(loss.item())
    return seen
