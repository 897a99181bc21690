"""Which epoch a pass over a Loader delivers, whoever drives it and wherever it stops."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler, TensorDataset

from fastdata import CenterCrop, LMDBDataset, Loader, LoaderError, RandomResizedCrop
from stores import COUNT, sha, square, store

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
    if kind == "here":
        return Loader(LMDBDataset(store(), size=64, crop=RandomResizedCrop(16), hflip=0.5), 8, num_workers=0, **options)
    if kind == "resident":
        return Loader(LMDBDataset(square(), crop=CenterCrop(24), hflip=0.5), 8, num_workers=0, resident="cpu", **options)
    if kind == "sampler":
        dataset = LMDBDataset(square(), crop=CenterCrop(24))
        return Loader(dataset, 8, num_workers=2, **{**options, "shuffle": False}, sampler=RandomSampler(dataset))
    return Loader(Rows(torch.arange(COUNT)), 8, **options)


KINDS = ["workers", "here", "resident", "sampler", "direct"]


@pytest.fixture(scope="module")
def reference():
    """Epochs 0, 1 and 2 of each kind, in full passes that are told their epoch."""
    found = {}
    for kind in KINDS:
        with make(kind) as loader:
            found[kind] = []
            for epoch in range(EPOCHS):
                loader.set_epoch(epoch)
                found[kind].append(sha(loader))
        assert len({str(epoch) for epoch in found[kind]}) == EPOCHS
    return found


def told(batches):
    return sha(batch for batch in batches)


WAYS = {
    "for": lambda loader: told(loader),
    "islice": lambda loader: told(itertools.islice(loader, len(loader))),
    "zip with a range": lambda loader: told(batch for _, batch in zip(range(len(loader)), loader, strict=False)),
    "next": lambda loader: told(next(batches) for batches in [iter(loader)] for _ in range(len(loader))),
    "enumerate and break": lambda loader: told(_until_the_last(loader)),
}


def _until_the_last(loader):
    for k, batch in enumerate(loader, 1):
        yield batch
        if k == len(loader):
            break


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_follows_the_other_whether_or_not_its_end_is_seen(kind, way, reference):
    with make(kind) as loader:
        assert [WAYS[way](loader) for _ in range(EPOCHS)] == reference[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_is_left_early_is_followed_by_the_next_epoch(kind, reference):
    with make(kind) as loader:
        for epoch, stop in enumerate((3, 1, 5)):
            assert told(itertools.islice(loader, stop)) == reference[kind][epoch][:stop]
            assert loader.epoch == epoch


@pytest.mark.parametrize("kind", ["workers", "direct"])
def test_zipped_loaders_stay_aligned(kind, reference):
    with make(kind) as first, make(kind) as second:
        for epoch in range(EPOCHS):
            pairs = list(zip(first, second, strict=False))
            assert sha(a for a, _ in pairs) == sha(b for _, b in pairs) == reference[kind][epoch]
    with make(kind) as long, Loader(Rows(torch.arange(9)), 3) as short:
        for epoch in range(EPOCHS):  # the longer one hands out a batch that zip drops
            pairs = list(zip(long, short, strict=False))
            assert [a.position[0] for a, _ in pairs] == [b.position[0] for _, b in pairs] == [epoch] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_that_has_handed_out_nothing_is_no_epoch(kind, reference):
    with make(kind) as loader:
        for _ in range(3):
            iter(loader)
        assert loader.epoch == 0 and loader.state_dict()["consumed"] == 0
        assert told(loader) == reference[kind][0]


@pytest.mark.parametrize("kind", ["workers", "sampler", "direct"])
def test_set_epoch_overrides_also_between_iter_and_the_first_batch(kind, reference):
    with make(kind) as loader:
        next(iter(loader))
        loader.set_epoch(0)
        assert told(loader) == reference[kind][0], "after a pass that was left"
        batches = iter(loader)
        loader.set_epoch(2)  # Lightning calls it after iter()
        assert told(batches) == reference[kind][2]
        loader.set_epoch(1)
        batches = iter(loader)
        loader.set_epoch(1)
        assert told(batches) == reference[kind][1]


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
@pytest.mark.parametrize("kind", ["workers", "here", "resident", "direct"])
def test_a_loaded_state_overrides_and_the_epoch_after_it_follows(kind, stop, reference):
    first, second, third = reference[kind]
    with make(kind) as loader:
        list(itertools.islice(loader, stop))
        state = json.loads(json.dumps(loader.state_dict()))
    with make(kind) as loader:
        list(itertools.islice(loader, 2))
        loader.load_state_dict(state)
        if stop == 6:  # every batch was handed out, though nobody saw the end
            assert told(itertools.islice(loader, 6)) == second and told(loader) == third
            return
        loader.set_epoch(0)  # what it resumes: nothing changes
        assert told(loader) == first[stop:] and told(loader) == second
        loader.load_state_dict(state)
        batches = iter(loader)
        assert told(itertools.islice(batches, 1)) == first[stop:][:1]
        assert told(itertools.islice(loader, 2)) == second[:2], "the resumed pass was left early"


def test_a_state_that_is_loaded_between_iter_and_the_first_batch_counts(reference):
    with make("workers") as loader:
        list(itertools.islice(loader, 4))
        state = loader.state_dict()
        batches = iter(loader)
        loader.load_state_dict(state)
        assert told(batches) == reference["workers"][0][4:]


def test_a_pass_that_has_begun_ends_with_an_error_when_another_begins():
    with make("here") as loader:
        old = iter(loader)
        next(old)
        assert next(iter(loader)).position == (1, 8)
        with pytest.raises(LoaderError, match="one pass at a time"):
            next(old)


def test_the_batches_ahead_are_used_where_nobody_saw_the_end(reference):
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


def test_set_size_and_schedule_go_on_with_it():
    dataset = LMDBDataset(store(), crop=CenterCrop(60))
    with Loader(dataset, 8, num_workers=2, schedule={0: (64, 32), 2: (96, 48)}) as loader:
        shapes = [{b[0].shape[-1] for b in itertools.islice(loader, len(loader))} for _ in range(3)]
    assert shapes == [{32}, {32}, {48}]


def test_the_epoch_can_be_told_where_a_dataloader_has_its_sampler(reference):
    with make("workers") as loader:
        loader.sampler.set_epoch(2)  # timm and torch's examples
        assert told(loader) == reference["workers"][2]
        loader.batch_sampler.set_epoch(1)
        batches = iter(loader)
        loader.sampler.set_epoch(1)  # Lightning also calls it after iter()
        assert told(batches) == reference["workers"][1]
        with pytest.raises(LoaderError, match="cannot be rebuilt from its sampler"):
            list(loader.sampler)


@pytest.mark.parametrize(("kind", "ordered"), [("workers", False), ("sampler", False), ("direct", True)])
def test_the_sampler_says_whether_a_loader_shuffles(kind, ordered):
    with make(kind, shuffle=not ordered) as loader:
        assert isinstance(loader.sampler, SequentialSampler) is ordered
