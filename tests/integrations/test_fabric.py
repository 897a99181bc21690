"""Fabric around a loop of one's own: its checkpoints keep a Loader's place."""

from __future__ import annotations

import pytest
from lightning.fabric import Fabric
from torch import nn

from common import train_loader
from stores import sha


@pytest.fixture(scope="module")
def epochs():
    """What three epochs deliver in a loop by hand."""
    with train_loader(0) as loader:
        return [sha(loader) for _ in range(3)]


@pytest.mark.parametrize("done", [0, 1, 5, 6, 8])
def test_a_checkpoint_keeps_the_loaders_place(tmp_path, epochs, done):
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with train_loader() as loader:
        batches = (batch for _ in range(2) for batch in loader)
        for _ in range(done):
            next(batches)
        fabric.save(tmp_path / "run.ckpt", {"model": nn.Linear(2, 2), "loader": loader})
    with train_loader(0) as loader:
        fabric.load(tmp_path / "run.ckpt", {"model": nn.Linear(2, 2), "loader": loader})
        epoch, first = divmod(done, 6)
        assert sha(loader) == epochs[epoch][first:] and sha(loader) == epochs[epoch + 1]
