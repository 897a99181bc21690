"""Lightning's Trainer over a Loader, and Fabric: which rows each hook sees, in which order, bit for bit.

What is looked at follows Lightning's own tests/tests_pytorch/trainer/test_dataloaders.py and utilities/test_combined_loader.py.
"""

from __future__ import annotations

import itertools

import lightning as L
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import nn

from common import flat, train_loader, val_loader
from fastdata import Batch
from stores import COUNT, once, sha

PER_EPOCH = 6


class Net(L.LightningModule):
    """A small network that keeps what its hooks were given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 8), nn.ReLU(), nn.Linear(8, 3))
        self.seen = {"train": [], "val": [], "predict": []}

    def loss(self, batch):
        images, targets = batch
        return nn.functional.cross_entropy(self.layers(images.float() / 255), targets)

    def training_step(self, batch, batch_idx):
        self.seen["train"] += sha([batch])
        return self.loss(batch)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.seen["val"] += sha([batch])
        self.log("val_loss", self.loss(batch), batch_size=batch.valid)

    def predict_step(self, batch, batch_idx):
        assert isinstance(batch, Batch)
        self.seen["predict"] += sha([batch])
        return batch.ids

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


@pytest.fixture(scope="module")
def validation():
    """What validation delivers. It has no random numbers, and a sanity check is no epoch of training."""
    with val_loader() as loader:
        return without_epochs(sha(loader))


def trainer(tmp_path, **options):
    chosen = {"max_epochs": 3, "logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    return L.Trainer(default_root_dir=tmp_path, accelerator="cpu", devices=1, enable_progress_bar=False, **{**chosen, **options})


def without_epochs(batches):
    return [(ids, valid, *rest) for ids, valid, _, *rest in batches]


def test_training_validation_and_the_sanity_check_see_each_row_in_order(tmp_path, epochs, validation):
    net = Net()
    with train_loader() as train, val_loader(2) as val:
        run = trainer(tmp_path)
        run.fit(net, train, val)
        assert run.num_training_batches == len(train) == PER_EPOCH and run.num_val_batches == [len(val)]
    assert net.seen["train"] == flat(epochs[:3])
    assert without_epochs(net.seen["val"]) == validation[:2] + 3 * validation


def test_predictions_are_of_every_row_once_in_order(tmp_path):
    net = Net()
    with val_loader() as loader:
        assert once(trainer(tmp_path).predict(net, loader), COUNT)
    assert [k for batch in net.seen["predict"] for k in batch[0]] == list(range(COUNT))


# Options of the Trainer, and which of the batches of the epochs 0 to 3 are trained on.
RUNS = {
    "limited": ({"limit_train_batches": 3}, lambda epochs: [epoch[:3] for epoch in epochs[:3]]),
    "half": ({"limit_train_batches": 0.5}, lambda epochs: [epoch[:3] for epoch in epochs[:3]]),
    "steps": ({"max_steps": 8, "max_epochs": -1}, lambda epochs: [epochs[0], epochs[1][:2]]),
    "fast": ({"fast_dev_run": 2}, lambda epochs: [epochs[0][:2]]),
    "made anew": ({"reload_dataloaders_every_n_epochs": 1}, lambda epochs: epochs[:3]),
    "validation within": ({"val_check_interval": 0.5, "num_sanity_val_steps": 0}, lambda epochs: epochs[:3]),
    "not distributed": ({"use_distributed_sampler": False}, lambda epochs: epochs[:3]),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_way_to_run_trains_on_the_batches_of_its_epochs(tmp_path, epochs, validation, name):
    class Remade(Net):
        def train_dataloader(self):
            return train_loader(0)

    options, expected = RUNS[name]
    with train_loader() as train, val_loader(2) as val, val_loader() as other:
        net = Remade() if name == "made anew" else Net()
        loaders = [] if name == "made anew" else [train, [val, other]]
        trainer(tmp_path, **options).fit(net, *loaders)
    assert net.seen["train"] == flat(expected(epochs))
    if name == "validation within":
        assert without_epochs(net.seen["val"]) == 12 * validation


class Pairs(Net):
    def training_step(self, batch, batch_idx, dataloader_idx=0):
        parts = [batch] if isinstance(batch, Batch) else [part for part in batch if part is not None]
        self.seen["train"] += sha(parts)
        return sum(map(self.loss, parts))


def zipped(long, short):
    return [batch for pair in itertools.zip_longest(long, short) for batch in pair if batch is not None]


# Of epochs of the longer and of the shorter loader, what each mode delivers in two epochs. A cycle within one begins a new epoch.
MODES = {
    "min_size": lambda a, b: [zipped(a[e][: len(b[e])], b[e]) for e in range(2)],
    "max_size": lambda a, b: [zipped(a[e], b[e]) for e in range(2)],
    "max_size_cycle": lambda a, b: [zipped(a[e], (b[e] + b[e + 1])[: len(a[e])]) for e in range(2)],
}


@pytest.mark.parametrize("mode", MODES)
def test_several_loaders_at_once(tmp_path, epochs, mode):
    with train_loader(0, seed=9, batch_size=12) as other:
        others = [sha(other) for _ in range(3)]
    net = Pairs()
    with train_loader(0) as long, train_loader(2, seed=9, batch_size=12) as short:
        trainer(tmp_path, max_epochs=2).fit(net, CombinedLoader([long, short], mode))
    assert net.seen["train"] == flat(MODES[mode](epochs, others))


class StopAt(Callback):
    """Raises after a step, as an accident would."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise RuntimeError("an accident")


def checkpointed(folder, epochs_apart=False, ckpt_path=None, stop=None, workers=0):
    """A run that saves after each step, or after each epoch, and may be killed after a step."""
    torch.manual_seed(0 if ckpt_path is None else 99)
    net = Net()
    when = {"every_n_epochs": 1} if epochs_apart else {"every_n_train_steps": 1}
    callbacks = [ModelCheckpoint(folder, "at-{step}", save_top_k=-1, **when)] + [StopAt(stop)] * (stop is not None)
    with train_loader(workers) as train, val_loader() as val:
        trainer(folder, enable_checkpointing=True, callbacks=callbacks).fit(net, train, val, ckpt_path=ckpt_path)
    return net


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return checkpointed(tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize(("step", "epochs_apart"), [(1, False), (4, False), (6, False), (6, True), (11, False), (12, True)])
def test_a_resumed_run_goes_on_with_the_next_row_and_ends_with_the_same_bits(tmp_path, epochs, straight, step, epochs_apart):
    with pytest.raises(RuntimeError, match="an accident"):
        checkpointed(tmp_path, epochs_apart, stop=step + 1)
    resumed = checkpointed(tmp_path, epochs_apart, tmp_path / f"at-step={step}.ckpt", workers=2)
    assert straight.seen["train"] == flat(epochs[:3])
    assert resumed.seen["train"] == straight.seen["train"][step:]
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("done", [0, 1, 5, 6, 8])
def test_a_checkpoint_of_fabric_keeps_the_loaders_place(tmp_path, epochs, done):
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with train_loader() as loader:
        batches = (batch for _ in range(2) for batch in loader)
        for _ in range(done):
            next(batches)
        fabric.save(tmp_path / "run.ckpt", {"model": nn.Linear(2, 2), "loader": loader})
    with train_loader(0) as loader:
        fabric.load(tmp_path / "run.ckpt", {"model": nn.Linear(2, 2), "loader": loader})
        epoch, first = divmod(done, PER_EPOCH)
        assert sha(loader) == epochs[epoch][first:] and sha(loader) == epochs[epoch + 1]
