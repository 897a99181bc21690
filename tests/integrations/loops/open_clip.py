"""The loop of open_clip's train_one_epoch: images and tokens, a scale that is clamped, gradients over accumulated features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

from data import MEAN, SIDE, STD, Folder
from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Loader

LENGTH, ACCUM = 12, 2


class Pairs(Folder):
    """Images, and the bytes of the captions beside them, ended and filled as CLIP's tokenizer does."""

    def __getitem__(self, index: int) -> Any:
        ids = [*self.paths[index].with_suffix(".txt").read_bytes(), 256][:LENGTH]
        return super().__getitem__(index)[0], torch.tensor(ids + [256] * (LENGTH - len(ids)))


def pairs(path: str, root: Path, sampler: RandomSampler) -> DataLoader | Loader:
    if path == "original":
        return DataLoader(Pairs(root / "images"), 4, sampler=sampler, drop_last=True)
    dataset, normalize = LMDBDataset(root / "images.fds", crop=CenterCrop(SIDE), fields="caption"), GPUNormalize(MEAN, STD)
    as_pair = [lambda batch: (normalize(batch[0]), batch[1].long())]
    return Loader(dataset, 4, sampler=sampler, drop_last=True, batch_transform=as_pair, num_workers=1)


def main(path: str, root: Path, epochs: int = 3) -> list[float]:
    torch.manual_seed(0)
    sampler = RandomSampler(Folder(root / "images"), generator=torch.Generator().manual_seed(0))
    dataloader = pairs(path, root, sampler)
    visual, text = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8)), nn.EmbeddingBag(257, 8)
    logit_scale = nn.Parameter(torch.tensor(2.659))
    optimizer = torch.optim.AdamW([*visual.parameters(), *text.parameters(), logit_scale], lr=1e-2)
    seen = list[float]()
    for _ in range(epochs):
        held = list[Any]()
        for images, texts in dataloader:
            held.append((images, texts))
            if len(held) < ACCUM:
                continue
            optimizer.zero_grad()
            image = F.normalize(torch.cat([visual(one) for one, _ in held]), dim=-1)
            words = F.normalize(torch.cat([text(one) for _, one in held]), dim=-1)
            logits = logit_scale.exp() * image @ words.T
            labels = torch.arange(len(logits))
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
            loss.backward()
            optimizer.step()
            logit_scale.data.clamp_(0, 4.605)
            held.clear()
            seen.append(loss.item())
    return seen
