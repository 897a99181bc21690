"""Fabric around a loop of one's own: ranks, checkpoints, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from common import launch, train_loader
from fastdata import LMDBDataset, Loader, RandomResizedCrop
from stores import COUNT, once, sha, store


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


def test_two_processes_see_each_row_once(tmp_path):
    launch("fabric", store(), tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, found in enumerate(ranks):
        dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(16))
        with Loader(dataset, 5, shuffle=True, seed=3, num_workers=0, rank=rank, world_size=2) as loader:
            expected = [[b.ids.tolist(), b.valid, *b.position, b[0].sum().item()] for _ in range(2) for b in loader]
        assert found["seen"] == expected
    for epoch in range(2):
        assert once([ids[:valid] for rank in ranks for ids, valid, at, *_ in rank["seen"] if at == epoch], COUNT)
    assert ranks[0]["weights"] == ranks[1]["weights"] and torch.tensor(ranks[0]["weights"]).isfinite().all()
