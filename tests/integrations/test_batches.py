"""What clients' own utilities make of a Batch: those of Lightning's, Accelerate's and transformers' tests of their utilities.

Lightning: tests_pytorch/utilities/test_data.py and tests_fabric/utilities/test_apply_func.py. Accelerate: tests/test_utils.py.
"""

from __future__ import annotations

import pytest
import torch
from accelerate.utils import (
    concatenate,
    convert_to_fp32,
    find_batch_size,
    gather,
    pad_across_processes,
    recursively_apply,
    send_to_device,
    slice_tensors,
)
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.utilities.data import extract_batch_size
from lightning_utilities.core.apply_func import apply_to_collection
from torchvision.transforms import v2
from transformers.trainer_pt_utils import find_batch_size as transformers_find_batch_size
from transformers.trainer_pt_utils import nested_detach

from common import train_loader, val_loader
from fastdata import Batch


@pytest.fixture(scope="module")
def batch():
    with val_loader() as loader:
        return next(iter(loader))


KEPT = {
    "Lightning's move_data_to_device": lambda batch: move_data_to_device(batch, "cpu"),
    "Lightning's half precision": lambda batch: HalfPrecision("bf16-true").convert_input(batch),
    "Accelerate's send_to_device": lambda batch: send_to_device(batch, "cpu", non_blocking=True),
    "Accelerate's recursively_apply": lambda batch: recursively_apply(torch.Tensor.contiguous, batch),
    "Accelerate's convert_to_fp32": convert_to_fp32,
    "Accelerate's gather": gather,
    "Accelerate's pad_across_processes": pad_across_processes,
    "torchvision's v2": v2.ToDtype(torch.float32, scale=True),
    "torchvision's v2 that moves": v2.RandomHorizontalFlip(p=1),
}


@pytest.mark.parametrize("name", KEPT)
def test_its_attributes_stay(batch, name):
    made = KEPT[name](batch)
    assert type(made) is Batch and len(made) == 2
    assert (made.valid, made.position) == (16, (0, 16)) and made.ids.tolist() == list(range(16))
    assert made[1].tolist() == batch[1].tolist()


REBUILT = {"Lightning": lambda batch: apply_to_collection(batch, torch.Tensor, torch.clone), "transformers": nested_detach}


@pytest.mark.parametrize("name", REBUILT)
def test_one_that_is_rebuilt_of_new_tensors_alone_says_nothing_rather_than_something_wrong(batch, name):
    made = REBUILT[name](batch)
    assert type(made) is Batch and (made.valid, made.ids, made.position) == (None, None, None)


def test_its_rows_are_counted():
    with train_loader(0) as loader:
        for batch in loader:
            rows = len(batch.ids)
            assert extract_batch_size(batch) == find_batch_size(batch) == transformers_find_batch_size(batch) == rows


def test_parts_and_sums_of_batches_have_the_rows_that_they_say(batch):
    part = slice_tensors(batch, slice(4, 9))
    assert torch.equal(part[1], batch[1][4:9]) and torch.equal(part[0], batch[0][4:9])
    assert getattr(part, "ids", None) is None, "other rows than the batch's"
    both = concatenate([batch, batch])
    assert torch.equal(both[0], torch.cat([batch[0], batch[0]]))
    assert getattr(both, "ids", None) is None or len(both.ids) == 32
