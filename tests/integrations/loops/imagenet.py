"""The loop of pytorch/examples' imagenet/main.py under torchrun: python imagenet.py original|fastdata ROOT OUT EPOCHS [RESUME]."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DistributedSampler, RandomSampler

from data import SIDE, Folder, loader


def main(path: str, root: Path, out: Path, epochs: int, resume: str | None = None) -> None:
    ranks = int(os.environ["WORLD_SIZE"]) > 1
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * (SIDE - 2) ** 2, 3)]
    model: nn.Module = nn.Sequential(*layers)
    if ranks:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    checkpoint = torch.load(resume) if resume else {"epoch": 0}
    for name in parts.keys() & checkpoint.keys():
        parts[name].load_state_dict(checkpoint[name])
    dataset = Folder(root / "images")
    sampler = DistributedSampler(dataset) if ranks else RandomSampler(dataset, generator=torch.Generator())
    train_loader = loader(path, root, 4, sampler=sampler)
    val_loader = loader(path, root, 8, **({} if path == "original" else {"split": False}))
    seen = []
    for epoch in range(checkpoint["epoch"], epochs):
        if ranks:
            sampler.set_epoch(epoch)
        else:
            sampler.generator.manual_seed(epoch)
        model.train()
        for images, target in train_loader:
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        model.eval()
        with torch.no_grad():
            seen.append(sum((model(images).argmax(1) == target).sum().item() for images, target in val_loader) / len(dataset))
        scheduler.step()
        if os.environ["RANK"] == "0":
            state = {"epoch": epoch + 1} | {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, out / "checkpoint.pth.tar")
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
