"""One of two processes of transformers' Trainer: python transformers_ranks.py STORE FOLDER, under torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from fastdata import CenterCrop, LMDBDataset, Loader
from fastdata.integrations.transformers import LoaderMixin


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 3))
        self.seen: list[int] = []

    def forward(self, pixel_values, labels):
        if self.training:
            self.seen.append(int(pixel_values.sum()))
        logits = self.layers(pixel_values.float() / 255)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class LoaderTrainer(LoaderMixin, Trainer):
    pass


def main(store: str, folder: str) -> None:
    dataset = LMDBDataset(store, size=64, crop=CenterCrop(24))
    with Loader(dataset, 5, shuffle=True, num_workers=1) as train, Loader(dataset, 5, num_workers=0) as val:
        sizes = {"per_device_train_batch_size": 5, "per_device_eval_batch_size": 5}
        args = TrainingArguments(folder, num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", **sizes)
        net = Net()
        trainer = LoaderTrainer(net, args, train_dataset=train, eval_dataset=val)
        trainer.train()
        losses = [trainer.evaluate()["eval_loss"]]
        with torch.no_grad():
            inputs = torch.stack([image for image, _ in dataset]), torch.from_numpy(dataset.targets)
            losses.append(net(*inputs)["loss"].item())
        found = {"seen": net.seen, "labels": trainer.predict(val).label_ids.tolist(), "losses": losses}
    Path(folder, f"{args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
