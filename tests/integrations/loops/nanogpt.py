"""The loop of nanoGPT's train.py: get_batch, accumulation, a warm-up and a cosine by hand, clipping, estimates of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastdata import Loader, NextToken, TokenDataset

BLOCK, BATCH, STEPS, MICRO = 16, 4, 12, 2


def batches(path: str, root: Path, split: str, order: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a split, beginning at these multiples of the block."""
    if path == "fastdata":
        dataset = TokenDataset(root / f"{split}.fds", BLOCK, mode="sequential")
        yield from Loader(dataset, BATCH, sampler=order, batch_transform=NextToken())
        return
    data = np.memmap(root / f"{split}.bin", dtype=np.uint16, mode="r")
    for k in range(0, len(order), BATCH):
        ix = [row * BLOCK for row in order[k : k + BATCH]]
        x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
        yield x, y


def main(path: str, root: Path, vocab: int) -> list[float]:
    torch.manual_seed(1337)
    model = nn.Sequential(nn.Embedding(vocab, 16), nn.Linear(16, vocab))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    rng, seen = np.random.default_rng(0), list[float]()
    train = batches(path, root, "train", rng.integers(0, 40, BATCH * MICRO * STEPS).tolist())
    for step in range(STEPS):
        if step % 4 == 0:
            with torch.no_grad():
                found = [
                    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in batches(path, root, "val", [*range(8)])
                ]
            seen.append(sum(found) / len(found))
        ratio = (step + 1) / 4 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / (STEPS - 3)))
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * ratio
        for _ in range(MICRO):
            x, y = next(train)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / MICRO
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item() * MICRO)
    return seen
