"""A script of Fabric's with two processes; the Loader is made before the second one is there: fabric_ranks.py STORE FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn

from fastdata import LMDBDataset, Loader, RandomResizedCrop


def main(store: str, folder: str) -> None:
    loader = Loader(LMDBDataset(store, size=64, crop=RandomResizedCrop(16)), 5, shuffle=True, seed=3, num_workers=1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    seen = []
    with loader:
        for _ in range(2):
            for batch in loader:
                moved = fabric.to_device(batch)
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(net(moved[0].float() / 255), moved[1]))
                optimizer.step()
                seen.append([moved.ids.tolist(), moved.valid, *moved.position, moved[0].sum().item()])
    weights = [parameter.sum().item() for parameter in net.parameters()]
    Path(folder, f"{fabric.global_rank}.json").write_text(json.dumps({"seen": seen, "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
