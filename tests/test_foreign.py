"""Others' datasets, samplers and functions under a Loader; and ours in others' hands."""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, Subset, TensorDataset
from torch.utils.data import random_split as torch_split

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from fastdata.errors import LoaderError
from stores import sha, store

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def ours(crop=16):
    return LMDBDataset(store(), size=64, crop=RandomResizedCrop(crop), hflip=0.5)


# collate_fn


def padded(items):
    tokens, labels = zip(*items, strict=True)
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


class Sentences(torch.utils.data.Dataset):
    """Of several lengths, with a random first word."""

    def __len__(self):
        return 23

    def __getitem__(self, k):
        tokens = torch.full((1 + k % 5,), k)
        tokens[0] = random.randrange(1000)
        return tokens, k


def test_collate_fn_makes_the_batches_of_other_datasets():
    passes = []
    for workers in (0, 2):
        with Loader(Sentences(), 4, shuffle=True, seed=1, num_workers=workers, collate_fn=padded) as loader:
            passes.append([[(batch[0].tolist(), batch[1].tolist(), batch.ids.tolist()) for batch in loader] for _ in range(2)])
    assert passes[0] == passes[1] and passes[0][0] != passes[0][1], "the same with workers; the next epoch draws others"
    for rows, labels, indices in passes[0][0]:
        width = max(1 + k % 5 for k in indices)
        assert labels == indices and [row[1:] for row in rows] == [([k] * (k % 5) + [0] * 4)[: width - 1] for k in indices]


LISTS = {"sampler": [[0, 1], [2]], "batch_size": 2}
SHORT = type("Short", (list,), {"__len__": lambda self: 3})([[0], [1]])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_sampler": [[0]], "batch_size": 4}, "leave out batch_size"),
        ({"batch_sampler": [[0]], "shuffle": True, "drop_last": True, "sampler": [0]}, "leave out shuffle, sampler, drop_last"),
        ({"batch_sampler": iter([[0]])}, r"batch_sampler needs a len\(\)"),
        ({"sampler": BatchSampler(range(4), 2, False), "batch_size": 2}, "lists of them go to batch_sampler="),
        ({"batch_sampler": [[0], []]}, "gave a batch without indices"),
        ({"sampler": [True, False], "batch_size": 2}, "sampler is a mask of booleans"),
        ({"sampler": np.array([True, False]), "batch_size": 2}, "sampler is a mask of booleans"),
        ({"sampler": torch.tensor([True, False]), "batch_size": 2}, "sampler is a mask of booleans"),
        (LISTS, "sampler must give indices; lists of them go to batch_sampler="),
        ({"batch_sampler": SHORT}, r"gave 2 batches, but its len\(\) is 3"),
        ({"batch_size": 4, "collate_fn": padded}, "collate_fn is for other datasets: a LMDBDataset makes whole batches itself"),
    ],
)
def test_what_does_not_go_together_and_what_a_sampler_gives_is_checked(options, match):
    with pytest.raises((ValueError, LoaderError), match=match):
        list(Loader(ours(), num_workers=0, **options))


# torch's wrappers around our datasets


def test_subsets_and_sums_of_torchs_keep_the_fast_path_and_its_indices():
    chosen, other = [5, 3, 40, 3], LMDBDataset(store("jpeg"), size=64, crop=RandomResizedCrop(16), hflip=0.5)
    twice = Subset(Subset(ours(), range(10, 30)), [3, 1])
    for theirs, own in (
        (Subset(ours(), chosen), ours().subset(chosen)),
        (twice, ours().subset([13, 11])),
        (ConcatDataset([ours(), Subset(other, range(7))]), ours() + other.subset(range(7))),
    ):
        with Loader(theirs, 7, num_workers=0, seed=1) as one, Loader(own, 7, num_workers=0, seed=1) as two:
            assert type(one.dataset) is type(own) and sha(one) == sha(two)
    train, _ = torch_split(Subset(ours(), range(10, 30)), [12, 8], torch.Generator().manual_seed(1))
    with Loader(train, 12, num_workers=0) as loader:
        assert next(iter(loader))[1].tolist() == ours().targets[10:30][train.indices].tolist()


def test_what_has_no_fast_path_stays_as_it_is():
    class Changed(Subset):
        def __getitem__(self, k):
            return super().__getitem__(k)[1]

        def __getitems__(self, indices):
            return [self[k] for k in indices]

    for dataset in (
        Changed(ours(), [1, 2]),
        ConcatDataset([ours(), TensorDataset(torch.zeros(3, 3, 16, 16), torch.zeros(3, dtype=torch.int64))]),
        ConcatDataset([ours(), ours().with_crop(CenterCrop(16))]),
        Subset(TensorDataset(torch.arange(5)), [1, 2]),
    ):
        with Loader(dataset, 2, num_workers=0) as loader:
            assert loader.dataset is dataset and next(iter(loader)) is not None


class Panic(BaseException):
    """As Rust's panics come to Python: no Exception."""


class Odd(Dataset[Any]):
    """Two good items, then one that makes trouble."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make() if index > 1 else torch.ones(2)


def raising(error: BaseException) -> Any:
    raise error


def a_function() -> Any:
    return lambda: 0


def a_generator() -> Any:
    return (k for k in range(3))


def with_gradient() -> Any:
    return [torch.ones(2, requires_grad=True) * 2]


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (a_function, Exception, "pickle"),
        (threading.Lock, TypeError, "pickle"),
        (a_generator, TypeError, "pickle"),
        (with_gradient, RuntimeError, "requires_grad"),
        (partial(sys.exit, 3), LoaderError, "SystemExit: 3"),
        (partial(raising, KeyboardInterrupt()), LoaderError, "KeyboardInterrupt"),
        (partial(raising, Panic("index out of bounds")), LoaderError, "Panic: index out of bounds"),
    ],
)
def test_what_a_worker_cannot_send_is_an_error_after_the_batches_before_it(make, kind, says):
    with Loader(Odd(make), 1, num_workers=1, collate_fn=list) as loader:
        batches = iter(loader)
        assert all(next(batches)[0].equal(torch.ones(2)) for _ in range(2))
        with pytest.raises(kind, match=says):
            next(batches)
