"""Prefetcher: any loader's batches, ahead of the consumer; its order, errors, state and attributes stay."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from fastdata import CenterCrop, LMDBDataset, Loader, Prefetcher
from paper import take_over
from runs import Counted
from stores import store
from support import under_way

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def failing(drawn: list[int]) -> Iterator[Tensor]:
    """Batches 0 to 9, noted when they are drawn, and an error."""
    for k in range(10):
        drawn.append(k)
        yield torch.tensor(k)
    raise OSError("the end")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_loader(workers):
    dataset = TensorDataset(torch.arange(50), torch.arange(50) * 2.0)
    made = lambda: DataLoader(dataset, 8, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(1))  # noqa: E731
    plain, subject = made(), Prefetcher(made(), "cpu")
    assert len(subject) == len(plain) == 7
    for _ in range(2):
        for found, want in zip(subject, plain, strict=True):
            assert type(found) is type(want) is list and all(map(torch.equal, found, want))


def test_an_error_comes_after_the_batches_before_it():
    """And no more than `depth` are drawn ahead."""
    for depth in (1, 2, 4):
        drawn, found = list[int](), list[int]()
        with pytest.raises(OSError, match="the end"):
            for batch in Prefetcher(failing(drawn), "cpu", depth=depth):
                found.append(int(batch))
                assert len(drawn) == min(len(found) + depth, 10)
        assert found == list(range(10))


def test_a_loader_without_length_stays_so():
    subject = Prefetcher(iter([torch.ones(2)]), "cpu")
    with pytest.raises(TypeError):
        len(subject)
    assert [batch.tolist() for batch in subject] == [[1, 1]] and list(subject) == []
    with pytest.raises(ValueError, match="depth is 0, but must be at least 1"):
        Prefetcher([], "cpu", depth=0)


def test_the_loaders_attributes_are_there():
    with Loader(LMDBDataset(store(), crop=CenterCrop(16)), 8, num_workers=0) as loader:
        subject = Prefetcher(loader, "cpu")
        assert (subject.epoch, subject.epoch_stop, subject.dataset) == (0, loader.epoch_stop, loader.dataset)
        list(subject)
        assert subject.epoch == 1 and subject.stats().batches == 6
        subject.set_epoch(5)
        assert loader.epoch == 5
        assert not hasattr(subject, "state_dict") and not hasattr(subject, "load_state_dict"), "it would be ahead"
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = subject.nothing_like_it
    for other in (copy.copy(Prefetcher(Counted(), "cpu")), pickle.loads(pickle.dumps(Prefetcher(Counted(), "cpu", depth=3)))):
        assert other.depth in (2, 3) and len(list(other)) == 9


def test_epochs_go_to_the_loader_or_its_samplers():
    dataset = TensorDataset(torch.arange(12))
    mine = DistributedSampler(dataset, 2, 0, seed=3)
    for loader in (
        DataLoader(dataset, 2, sampler=mine),
        DataLoader(dataset, batch_sampler=BatchSampler(mine, 2, drop_last=False)),
        DataLoader(dataset, batch_sampler=DistributedSampler([[0], [1], [2], [3]], 2, 0)),
    ):
        Prefetcher(loader, "cpu").set_epoch(7)
        assert getattr(loader.batch_sampler, "epoch", None) == 7 or mine.epoch == 7
        mine.epoch = 0
    Prefetcher([torch.ones(1)], "cpu").set_epoch(3)


@pytest.mark.parametrize("end", ["break", "error", "let go"])
def test_a_pass_that_ends_early_lets_go_of_everything(end, monkeypatch):
    take_over(monkeypatch, eager=False)
    held: list[Any] = []

    def watched(k: int) -> Tensor:
        array = np.full(8, k)
        held.append(weakref.ref(array))
        return torch.from_numpy(array)

    subject = Prefetcher(map(watched, range(10)), "cpu", depth=3)
    batches = iter(subject)
    next(batches)
    assert len(held) == 4 and len(under_way(subject)) == 4
    if end == "error":
        with pytest.raises(ZeroDivisionError):
            batches.throw(ZeroDivisionError())
    elif end == "break":
        batches.close()
    del batches
    gc.collect()
    assert not under_way(subject) and all(reference() is None for reference in held)
