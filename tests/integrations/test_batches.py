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

from common import val_loader
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


def test_others_rows_have_no_attributes_of_this_batch(batch):
    for made in (apply_to_collection(batch, torch.Tensor, torch.clone), nested_detach(batch)):
        assert type(made) is Batch and (made.valid, made.ids, made.position) == (None, None, None)
    assert extract_batch_size(batch) == find_batch_size(batch) == transformers_find_batch_size(batch) == len(batch.ids)
    part, both = slice_tensors(batch, slice(4, 9)), concatenate([batch, batch])
    assert torch.equal(part[1], batch[1][4:9]) and torch.equal(both[0], torch.cat([batch[0], batch[0]]))
    assert getattr(part, "ids", None) is None and (getattr(both, "ids", None) is None or len(both.ids) == 32)
