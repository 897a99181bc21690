"""One process of a client's, or one of several: what a Loader gives to its loop.

python client_ranks.py CLIENT STORE FOLDER [STRATEGY], under torchrun or alone: each rank writes what it saw into FOLDER. Loaders
are made before Fabric starts a second process. Lightning's "ddp" runs the script again there; "ddp_fork", for notebooks, forks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop


def cropped(store: str) -> LMDBDataset:
    return LMDBDataset(store, size=64, crop=CenterCrop(16))


def loader(store: str, batch_size: int, **options: Any) -> Loader:
    dataset = LMDBDataset(store, size=64, crop=RandomResizedCrop(16))
    return Loader(dataset, batch_size, shuffle=True, seed=3, num_workers=1, **options)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))


def loss(net: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(net(batch[0].float() / 255), batch[1])


def row(batch: Any) -> list[Any]:
    return [batch.ids.tolist(), batch.valid, *batch.position, batch[0].sum().item()]


def write(folder: str, rank: int, found: dict[str, Any]) -> None:
    """Add what a rank has found to its file."""
    path = Path(folder, f"{rank}.json")
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **{name: value for name, value in found.items() if value}}))


def accelerate(store: str, folder: str) -> None:
    from accelerate import Accelerator

    from fastdata.integrations.accelerate import AcceleratedLoader

    accelerator, net = Accelerator(cpu=True, gradient_accumulation_steps=4), layers()
    train = AcceleratedLoader(loader(store, 4, device=accelerator.device))
    val = AcceleratedLoader(Loader(cropped(store), 5, num_workers=0))
    net, optimizer, train, val = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3), train, val)
    found: dict[str, list[Any]] = {"train": [], "synced": [], "val": [], "kept": []}
    for _ in range(2):
        for k, batch in enumerate(train, 1):
            with accelerator.accumulate(net):
                accelerator.backward(loss(net, batch))
                optimizer.step()
                optimizer.zero_grad()
            found["train"].append(row(batch))
            if accelerator.sync_gradients:
                found["synced"].append(k)
    for batch in val:
        ids = torch.from_numpy(batch.ids)
        found["val"] += accelerator.gather_for_metrics(ids).tolist()
        mask = accelerator.gather(torch.arange(len(ids)) < batch.valid)
        found["kept"] += accelerator.gather(ids)[mask].tolist()
    write(folder, accelerator.process_index, found)
    train.loader.close()
    accelerator.end_training()


def fabric(store: str, folder: str) -> None:
    from lightning.fabric import Fabric

    with loader(store, 5) as batches:
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        net = layers()
        net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1e-3))
        seen = []
        for batch in (batch for _ in range(2) for batch in batches):
            moved = fabric.to_device(batch)
            optimizer.zero_grad()
            fabric.backward(loss(net, moved))
            optimizer.step()
            seen.append(row(moved))
    write(folder, fabric.global_rank, {"train": seen, "weights": [parameter.sum().item() for parameter in net.parameters()]})


def lightning(store: str, folder: str, strategy: str) -> None:
    import lightning as L

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()
            self.seen: dict[str, list[Any]] = {"train": [], "val": [], "predict": []}

        def training_step(self, batch, batch_idx):
            self.seen["train"].append(row(batch))
            return loss(self.layers, batch)

        def validation_step(self, batch, batch_idx):
            self.seen["val"].append(row(batch))

        def predict_step(self, batch, batch_idx):
            self.seen["predict"].append(row(batch))

        def write(self):
            write(folder, self.trainer.global_rank, self.seen)

        on_fit_end = on_predict_end = write

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    with loader(store, 5) as train, Loader(cropped(store), 5, num_workers=0) as val:
        trainer = L.Trainer(default_root_dir=folder, accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet)
        net = Net()
        trainer.fit(net, train, val)
        trainer.predict(net, val, return_predictions=False)


def transformers(store: str, folder: str) -> None:
    from transformers import Trainer, TrainingArguments

    from fastdata.integrations.transformers import LoaderMixin

    seen = list[Any]()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def forward(self, pixel_values, labels):
            return {"loss": loss(self.layers, (pixel_values, labels)), "logits": self.layers(pixel_values.float() / 255)}

    class LoaderTrainer(LoaderMixin, Trainer):
        def to_inputs(self, batch):
            if self.model.training:
                seen.append(row(batch))
            return super().to_inputs(batch)

    dataset, net = cropped(store), Net()
    with loader(store, 5) as train, Loader(dataset, 5, num_workers=0) as val:
        sizes = {"per_device_train_batch_size": 5, "per_device_eval_batch_size": 5}
        args = TrainingArguments(folder, num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", **sizes)
        trainer = LoaderTrainer(net, args, train_dataset=train, eval_dataset=val)
        trainer.train()
        losses = [trainer.evaluate()["eval_loss"]]
        with torch.no_grad():
            inputs = torch.stack([image for image, _ in dataset]), torch.from_numpy(dataset.targets)
            losses.append(net(*inputs)["loss"].item())
        labels = trainer.predict(val).label_ids.tolist()
        write(folder, args.process_index, {"train": seen, "labels": labels, "targets": dataset.targets.tolist(), "losses": losses})


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
