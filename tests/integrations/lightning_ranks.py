"""A script of Lightning's with two processes: the Loader is made in its body, before the second process is there.

python lightning_ranks.py STORE FOLDER STRATEGY: each rank writes what it saw to FOLDER/fit-RANK.json and predict-RANK.json.
"ddp" runs the script again in a second process; "ddp_fork", which notebooks use, forks two from this one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning as L
import torch
from torch import nn

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
        self.seen: dict[str, list] = {"train": [], "val": [], "predict": []}

    def keep(self, stage, batch):
        self.seen[stage].append([batch.ids.tolist(), batch.valid, *batch.position, batch[0].sum().item()])

    def training_step(self, batch, batch_idx):
        self.keep("train", batch)
        return nn.functional.cross_entropy(self.layers(batch[0].float() / 255), batch[1])

    def validation_step(self, batch, batch_idx):
        self.keep("val", batch)

    def predict_step(self, batch, batch_idx):
        self.keep("predict", batch)

    def write(self):
        name = f"{self.trainer.state.fn.value}-{self.trainer.global_rank}.json"
        Path(self.trainer.default_root_dir, name).write_text(json.dumps(self.seen))

    on_fit_end = on_predict_end = write

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main(store: str, folder: str, strategy: str) -> None:
    train = Loader(LMDBDataset(store, size=64, crop=RandomResizedCrop(16)), 5, shuffle=True, seed=3, num_workers=1)
    val = Loader(LMDBDataset(store, size=64, crop=CenterCrop(16)), 5, num_workers=0)
    trainer = L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    net = Net()
    with train, val:
        trainer.fit(net, train, val)
        trainer.predict(net, val, return_predictions=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
