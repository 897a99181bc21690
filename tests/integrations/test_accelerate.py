"""Accelerate over a Loader, in one process and in several.

What is looked at follows Accelerate's own tests/test_data_loader.py, and its scripts test_sync.py and test_metrics.py.
"""

from __future__ import annotations

import json

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import GradientState

from common import check_training, launch, placed, train_loader, val_loader
from fastdata import Batch, Loader
from fastdata.integrations.accelerate import AcceleratedLoader
from stores import COUNT, sha


@pytest.mark.parametrize(("count", "place"), [(1, "local"), (2, "local"), (3, "local"), (2, "merged"), (2, "remote")])
def test_each_rank_trains_on_what_its_loader_delivers_and_gathers_each_row_once(count, place, tmp_path):
    """Gradients are synchronized at the end of each epoch, too."""
    with placed(place) as (where, local, more, options):
        launch("accelerate", where, tmp_path, ranks=count, env=more)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    check_training([rank["train"] for rank in ranks], local, 4, AcceleratedLoader, **options)
    batches = -(-COUNT // (4 * count))
    synced = [k for k in range(1, batches + 1) if k % 4 == 0 or k == batches]
    for rank in ranks:
        assert rank["synced"] == 2 * synced
        assert rank["val"] == rank["kept"] == list(range(COUNT)), "in the dataset's order"


def test_the_rows_of_the_ranks_are_neighbours():
    for rank, expected in enumerate([[0, 1], [2, 3], [4, 4], [4, 4]]):
        loader = Loader(torch.arange(13), 2, num_workers=0, rank=rank, world_size=4)  # 5 rows in the end
        assert [batch.tolist() for batch in AcceleratedLoader(loader)] == [[2 * rank, 2 * rank + 1], [8 + k for k in expected]]
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
