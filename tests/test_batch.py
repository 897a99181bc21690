"""A Batch keeps what it says of its rows, whatever torch or a client does with it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from fastdata import Batch, CenterCrop, LMDBDataset, Loader
from stores import square


def batch_of(**options):
    with Loader(LMDBDataset(square(), crop=CenterCrop(8)), 8, num_workers=0, rank=0, world_size=5, **options) as loader:
        return list(loader)[-1]  # two rows of 42: only one rank has two


def says(batch):
    assert type(batch) is Batch
    return batch.valid, batch.ids.tolist(), batch.position


WAYS = {
    "to": lambda batch: batch.to("cpu"),
    "to a dtype": lambda batch: batch.to(torch.float32),
    "to, as Lightning does": lambda batch: batch.to("cpu", non_blocking=True),
    "tree_map": lambda batch: pytree.tree_map(lambda tensor: tensor.clone(), batch),
    "tree_map_only": lambda batch: pytree.tree_map_only(torch.Tensor, lambda tensor: tensor * 2, batch),
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "built anew from its tensors": lambda batch: type(batch)(item for item in batch),
    "built anew with one new tensor": lambda batch: type(batch)([batch[0].float(), batch[1]]),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_keeps_its_attributes(way):
    batch = batch_of()
    assert batch.valid is not None and batch.position == (0, 42) and len(batch.ids) == 1
    assert says(WAYS[way](batch)) == says(batch)


def test_to_is_what_each_tensor_does():
    batch = batch_of()
    moved = batch.to(torch.float64)
    for old, new in zip(batch, moved, strict=True):
        assert torch.equal(old.to(torch.float64), new) and new.dtype == torch.float64
    assert moved[0].is_contiguous(memory_format=torch.channels_last)
    assert batch.to("meta")[0].device.type == "meta"
    nested = Batch.of([{"a": torch.ones(2)}, [torch.zeros(1)], "name"], 2, np.arange(2), (0, 2)).to(torch.int8)
    assert nested[0]["a"].dtype == nested[1][0].dtype == torch.int8 and nested[2] == "name" and nested.valid == 2


def test_it_is_a_node_of_a_pytree():
    batch = batch_of()
    leaves, spec = pytree.tree_flatten({"batch": batch})
    assert [leaf is item for leaf, item in zip(leaves, batch, strict=True)] == [True, True]
    assert says(pytree.tree_unflatten(leaves, spec)["batch"]) == says(batch)
    added = pytree.tree_map(torch.add, batch, Batch.of(batch, 0, None, None))  # attributes are no part of the structure
    assert torch.equal(added[0], batch[0] + batch[0])


@pytest.mark.parametrize("others", [lambda a, b: torch.cat([a, b]), lambda a, _: a.sum(), lambda a, _: a[:0]])
def test_a_function_that_makes_other_rows_leaves_the_attributes_behind(others):
    mapped = pytree.tree_map(others, batch_of(), batch_of())
    assert (type(mapped), mapped.valid, mapped.ids, mapped.position) == (Batch, None, None, None)


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch.compile of 2.6 takes no subclasses of tuple")
def test_it_can_be_passed_to_a_compiled_function():
    batch = batch_of()

    @torch.compile(backend="eager", fullgraph=True)
    def summed(batch):
        images, targets = batch
        return images.float().sum() + targets.sum()

    assert summed(batch) == batch[0].float().sum() + batch[1].sum()


def test_one_that_is_made_by_hand_says_nothing():
    batch = Batch([torch.ones(2), torch.zeros(2)])
    assert (batch.valid, batch.ids, batch.position) == (None, None, None)
    first = batch_of()
    assert Batch([first[0][:1], first[1][:1]]).ids is None, "other rows are not those that the ids name"
