"""Which epoch a pass over a Loader delivers, whoever drives it and wherever it stops."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils.data import SequentialSampler, TensorDataset

from fastdata import LMDBDataset, Loader, RandomResizedCrop
from fastdata.errors import LoaderError
from stores import COUNT, sha, store

EPOCHS = 3
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Rows(TensorDataset):
    """Made in the Loader's own process, as tables and tokens are."""

    def locate(self, indices, *, seed, epoch, repeats):
        return indices

    def gather(self, rows, *, pin):
        return tuple(column[torch.from_numpy(rows)] for column in self.tensors)


def make(kind, **options):
    options = {"shuffle": True, "seed": 5, **options}
    if kind == "workers":
        return Loader(LMDBDataset(store(), size=64, crop=RandomResizedCrop(16), hflip=0.5), 8, num_workers=2, **options)
    return Loader(Rows(torch.arange(COUNT)), 8, **options)


@cache
def reference(kind):
    """Epochs 0, 1 and 2 of a kind, in full passes that are told their epoch."""
    with make(kind) as loader:
        return [sha(loader) for epoch in range(EPOCHS) if loader.set_epoch(epoch) is None]


@pytest.mark.parametrize("kind", ["workers", "direct"])
def test_zipped_loaders_stay_aligned(kind):
    with make(kind) as first, make(kind) as second:
        for epoch in range(EPOCHS):
            pairs = list(zip(first, second, strict=False))
            assert sha(a for a, _ in pairs) == sha(b for _, b in pairs) == reference(kind)[epoch]
    with make(kind) as long, Loader(Rows(torch.arange(9)), 3) as short:
        for epoch in range(EPOCHS):  # the longer one hands out a batch that zip drops
            pairs = list(zip(long, short, strict=False))
            assert [a.position[0] for a, _ in pairs] == [b.position[0] for _, b in pairs] == [epoch] * 3


def test_the_batches_ahead_are_used_where_nobody_saw_the_end():
    """Workers make the next epoch's first batches meanwhile: a pass that is driven by its length must not throw them away."""
    seen = []

    class Told(TensorDataset):
        def __getitem__(self, k):
            seen.append(k)
            return super().__getitem__(k)

    with Loader(Told(torch.arange(COUNT)), 8, shuffle=True, num_workers=0) as loader:
        for _ in range(2):
            list(itertools.islice(loader, len(loader)))
        assert len(seen) == 2 * COUNT and np.unique(seen[:COUNT]).size == COUNT


def test_the_epoch_can_be_told_where_a_dataloader_has_its_sampler():
    with make("workers") as loader:
        loader.sampler.set_epoch(2)  # timm and torch's examples
        assert sha(loader) == reference("workers")[2]
        loader.batch_sampler.set_epoch(1)
        batches = iter(loader)
        loader.sampler.set_epoch(1)  # Lightning also calls it after iter()
        assert sha(batches) == reference("workers")[1]
        with pytest.raises(LoaderError, match="cannot be rebuilt from its sampler"):
            list(loader.sampler)
        assert not isinstance(loader.sampler, SequentialSampler)
    with make("direct", shuffle=False) as loader:
        assert isinstance(loader.sampler, SequentialSampler)
