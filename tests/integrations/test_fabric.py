"""Fabric around a loop of one's own: ranks, checkpoints, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from common import check_training, launch, train_loader
from stores import sha, store


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


def test_two_processes_see_each_row_once(tmp_path):
    launch("fabric", store(), tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    check_training([rank["seen"] for rank in ranks], store(), 5)
    assert ranks[0]["weights"] == ranks[1]["weights"] and torch.tensor(ranks[0]["weights"]).isfinite().all()
