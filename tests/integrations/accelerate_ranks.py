"""One process of Accelerate's, or one of several: what an AcceleratedLoader gives to its loop.

python accelerate_ranks.py STORE FOLDER, under torchrun or alone: each rank writes what it saw to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from fastdata.integrations.accelerate import AcceleratedLoader


def main(store: str, folder: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    dataset = LMDBDataset(store, size=64, crop=RandomResizedCrop(16))
    train = AcceleratedLoader(Loader(dataset, 4, shuffle=True, seed=3, num_workers=1, device=accelerator.device))
    val = AcceleratedLoader(Loader(LMDBDataset(store, size=64, crop=CenterCrop(16)), 5, num_workers=0))
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    net, optimizer, train, val = accelerator.prepare(net, optimizer, train, val)
    found: dict[str, list] = {"train": [], "synced": [], "val": [], "kept": []}
    for _ in range(2):
        for k, batch in enumerate(train, 1):
            with accelerator.accumulate(net):
                accelerator.backward(nn.functional.cross_entropy(net(batch[0].float() / 255), batch[1]))
                optimizer.step()
                optimizer.zero_grad()
            found["train"].append([batch.ids.tolist(), batch.valid, *batch.position, batch[0].sum().item()])
            if accelerator.sync_gradients:
                found["synced"].append(k)
    for batch in val:
        ids = torch.from_numpy(batch.ids)
        found["val"] += accelerator.gather_for_metrics(ids).tolist()
        mask = accelerator.gather(torch.arange(len(ids)) < batch.valid)
        found["kept"] += accelerator.gather(ids)[mask].tolist()
    Path(folder, f"{accelerator.process_index}.json").write_text(json.dumps(found))
    train.loader.close()
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
