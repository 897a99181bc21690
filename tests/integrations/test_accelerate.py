"""Accelerate over a Loader, in one process and in several.

What is looked at follows Accelerate's own tests/test_data_loader.py, and its scripts test_sync.py and test_metrics.py.
"""

from __future__ import annotations

import json

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import GradientState

from common import launch, placed, train_loader, val_loader
from fastdata import Batch, LMDBDataset, Loader, RandomResizedCrop
from fastdata.integrations.accelerate import AcceleratedLoader
from stores import COUNT, once, sha


@pytest.fixture(scope="module")
def epochs():
    """What three epochs deliver in a loop by hand."""
    with train_loader(0) as loader:
        return [sha(loader) for _ in range(3)]


@pytest.fixture(scope="module", params=["1 local", "2 local", "3 local", "2 merged", "2 remote"])
def run(request, tmp_path_factory):
    """What each of so many processes saw, and the store and the options of a Loader by hand."""
    folder = tmp_path_factory.mktemp("ranks")
    number, place = request.param.split()
    with placed(place) as (where, local, more, options):
        launch("accelerate", where, folder, ranks=int(number), env=more)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(int(number))], local, options


@pytest.fixture
def ranks(run):
    return run[0]


def test_each_rank_trains_on_what_a_loader_of_that_rank_delivers(run):
    ranks, local, options = run
    for rank, found in enumerate(ranks):
        dataset = LMDBDataset(local, size=64, crop=RandomResizedCrop(16))
        loader = Loader(dataset, 4, shuffle=True, seed=3, num_workers=0, rank=rank, world_size=len(ranks), **options)
        with loader:
            batches = [batch for _ in range(2) for batch in AcceleratedLoader(loader)]
        assert found["train"] == [[b.ids.tolist(), b.valid, *b.position, b[0].sum().item()] for b in batches]
    for epoch in range(2):
        assert once([ids[:valid] for rank in ranks for ids, valid, found, *_ in rank["train"] if found == epoch], COUNT)


def test_gradients_are_synchronized_at_the_end_of_each_epoch(ranks):
    batches = -(-COUNT // (4 * len(ranks)))
    expected = [k for k in range(1, batches + 1) if k % 4 == 0 or k == batches]
    assert all(rank["synced"] == 2 * expected for rank in ranks)


def test_gathered_rows_are_each_row_once_in_order(ranks):
    for rank in ranks:
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
