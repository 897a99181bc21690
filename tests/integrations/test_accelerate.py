"""Accelerate over a Loader.

What is looked at follows Accelerate's own tests/test_data_loader.py, and its scripts test_sync.py and test_metrics.py.
"""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import GradientState

from common import train_loader, val_loader
from fastdata import Batch, Loader
from fastdata.integrations.accelerate import AcceleratedLoader
from stores import sha


def test_the_remainder_is_how_many_rows_of_the_last_batch_are_real():
    for rows, ranks, remainder in ((16, 2, 8), (13, 2, 5), (12, 4, 4), (15, 4, 7), (3, 4, 3)):
        loader = Loader(torch.arange(rows), 8 // ranks, num_workers=0, rank=0, world_size=ranks)
        assert AcceleratedLoader(loader).remainder == remainder


@pytest.mark.parametrize("skipped", [0, 1, 5])
@pytest.mark.parametrize("epoch", [0, 1])
def test_skip_first_batches(epochs, epoch, skipped):
    with train_loader() as loader:
        made = AcceleratedLoader(loader)
        made.set_epoch(epoch)
        rest = skip_first_batches(made, skipped)
        assert len(rest) == 6 - skipped
        assert sha(rest) == epochs[epoch][skipped:]
        assert sha(made) == epochs[epoch + 1]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("done", [1, 4, 6, 7])
def test_a_checkpoint_goes_on_with_the_next_batch(tmp_path, epochs, done, skip):
    accelerator = Accelerator(cpu=True)
    with train_loader() as loader:
        made = AcceleratedLoader(loader)
        accelerator.register_for_checkpointing(made)
        batches = (batch for _ in range(2) for batch in made)
        for _ in range(done):
            next(batches)
        accelerator.save_state(tmp_path)
        batches.close()
    accelerator = Accelerator(cpu=True)
    with train_loader(0) as loader:
        made = AcceleratedLoader(loader)
        accelerator.register_for_checkpointing(made)
        accelerator.load_state(tmp_path)
        epoch, first = divmod(done, 6)
        made.set_epoch(epoch)  # as training scripts do
        found = sha(skip_first_batches(made, first) if skip else made)
        assert found == epochs[epoch][first:]
        assert sha(made) == epochs[epoch + 1]


def test_validation_within_training_and_a_pass_that_is_left(epochs):
    state = GradientState()
    with train_loader(0) as loader, val_loader() as val:
        made, other = AcceleratedLoader(loader), AcceleratedLoader(val)
        seen = []
        for batch in made:
            ends = [state.end_of_dataloader for _ in other]
            assert ends == [False, False, True] and state.active_dataloader is made and isinstance(batch, Batch)
            seen += sha([batch])
        assert seen == epochs[0]
        next(iter(made))
        assert GradientState().active_dataloader is None
        assert sha(made) == epochs[2]
