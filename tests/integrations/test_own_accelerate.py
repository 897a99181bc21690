"""Accelerate's own tests of its loaders, with AcceleratedLoaders.

From Accelerate 1.15 (Apache-2.0): tests, and accelerate.test_utils.scripts, which the package ships. Each names its source.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from accelerate.state import GradientState
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import BatchSampler, TensorDataset

from own import accelerated

SCRIPT = Path(__file__).with_name("own_ranks.py")


# tests/test_grad_sync.py: test_gradient_sync_cpu_noop, ..._cpu_multi; tests/test_metrics.py: test_metric_cpu_noop, ..._cpu_multi
# tests/test_multidevice.py and tests/test_cpu.py: test_script.py, test_distributed_data_loop.py
# transformers' tests/trainer/distributed/test_trainer_distributed_ddp.py: eval_ddp.py
@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        *itertools.product(["sync", "metrics", "training", "order"], [1, 2]),
        ("loops", 2),
        ("predictions", 2),
        ("predictions", 3),
    ],
)
def test_a_script(tmp_path, script, ranks):
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, *launch, str(SCRIPT), script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]


def lists(batches):
    return [batch.tolist() for batch in batches]


# tests/test_data_loader.py: test_reproducibility
def test_the_seed_decides_the_order():
    orders = []
    for seed in (21, 21, 42):
        set_seed(99)
        orders.append(lists(accelerated(list(range(6)), shuffle=True, seed=seed)))
    assert orders[0] == orders[1] != orders[2]


# tests/test_data_loader.py: test_skip_data_loader, test_skip_first_batches
@pytest.mark.parametrize("skipped", [0, 2, 4])
def test_skip_first_batches(skipped):
    rest = skip_first_batches(accelerated(list(range(16)), 4), num_batches=skipped)
    assert lists(rest) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]][skipped:]


# tests/test_data_loader.py: test_end_of_dataloader, test_end_of_dataloader_dispatcher
@pytest.mark.parametrize("workers", [0, 2])
def test_end_of_dataloader(workers):
    made = accelerated(list(range(16)), 4, num_workers=workers)
    with made.loader:
        for _ in range(2):
            assert [made.end_of_dataloader for _ in made] == [False, False, False, True]


class Told(BatchSampler):
    """A batch sampler that is told the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


# tests/test_data_loader.py: test_set_epoch_in_batch_sampler, test_skip_first_batches_does_not_reset_sampler_epoch,
# test_skip_first_batches_preserves_iteration
@pytest.mark.parametrize("skipped", [0, 2])
def test_a_batch_sampler_is_told_the_epoch(skipped):
    sampler = Told(range(16), 4, False)
    made = accelerated(list(range(16)), None, batch_sampler=sampler)
    next(iter(made))
    assert sampler.epoch == 0
    made.set_epoch(1)
    next(iter(skip_first_batches(made, skipped)))
    assert sampler.epoch == made.loader.epoch == 1


# tests/test_data_loader.py: test_skip_first_batches_does_not_reset_sampler_epoch, with Accelerate's sampler
def test_accelerates_sampler_is_told_the_epoch():
    dataset = list(range(16))
    sampler = SeedableRandomSampler(dataset, data_seed=5)
    sampler.set_epoch(1)
    expected = list(sampler)
    sampler.set_epoch(0)
    made = accelerated(dataset, 4, sampler=sampler)
    made.set_epoch(1)
    assert lists(skip_first_batches(made, 2)) == [expected[8:12], expected[12:]]


# tests/test_data_loader.py: test_batch_sampler_with_varying_batch_size, test_batch_sampler_varying_batch_size_even_batches
def test_batches_of_different_sizes():
    batches = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10, 11], [12, 13]]
    ranks = []
    for rank in range(2):
        shard = BatchSamplerShard(batches, 2, rank, even_batches=True)
        ranks.append(lists(accelerated(list(range(14)), None, batch_sampler=list(shard))))
    assert ranks == [[[0, 1, 2], [5, 6, 7, 8], [12, 13]], [[3, 4], [9, 10, 11], [0, 1, 2]]]


# What each of two ranks gets of 24, 21, 22, 20 and 2 rows by 3. Accelerate gives whole batches, and begins anew where
# rows are missing; a Loader shares out the last batch too, and repeats the last row.
SHARDS = {
    (24, False): [[3, 3, 3, 3], [3, 3, 3, 3]],
    (24, True): [[3, 3, 3, 3], [3, 3, 3, 3]],
    (21, False): [[3, 3, 3, 2], [3, 3, 3, 2]],
    (21, True): [[3, 3, 3], [3, 3, 3]],
    (22, False): [[3, 3, 3, 2], [3, 3, 3, 2]],
    (20, False): [[3, 3, 3, 1], [3, 3, 3, 1]],
    (20, True): [[3, 3, 3], [3, 3, 3]],
    (2, False): [[1], [1]],
}


# tests/test_data_loader.py: test_batch_sampler_shards_with_no_splits
@pytest.mark.parametrize(("rows", "drop_last"), SHARDS)
def test_the_shares_of_two_ranks(rows, drop_last):
    ranks = []
    for rank in range(2):
        made = accelerated(list(range(rows)), 3, drop_last=drop_last, rank=rank, world_size=2)
        ranks.append(lists(made))
    assert [[len(batch) for batch in batches] for batches in ranks] == SHARDS[rows, drop_last]
    gathered = [row for batches in zip(*ranks, strict=True) for batch in batches for row in batch]
    assert gathered == [*range(len(gathered))] if drop_last else gathered[:rows] == [*range(rows)]


# tests/test_data_loader.py: test_dataloader_state_dict, test_dataloader_dispatcher_state_dict
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_within_an_epoch(workers):
    first, second = (accelerated(list(range(16)), 4, shuffle=True, num_workers=workers) for _ in range(2))
    with first.loader, second.loader:
        seen = []
        for k, batch in enumerate(first):
            seen.append(batch.tolist())
            if k == 1:
                state = first.state_dict()
        second.load_state_dict(state)
        assert lists(second) == seen[2:] and len(seen) == 4


# tests/test_data_loader.py: test_ensure_dataloader_gets_cleaned_up
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_let_go_is_freed_at_once(workers):
    accelerator = Accelerator(cpu=True)
    made = accelerator.prepare(accelerated(list(range(16)), 4, num_workers=workers))
    batches = iter(made)
    assert next(batches).tolist() == [0, 1, 2, 3]
    skip_first_batches(made, 1)
    gc.disable()
    try:
        found = weakref.ref(made), weakref.ref(made.loader)
        del batches, made
        assert [each() for each in found] == [None, None]
        assert GradientState().active_dataloader is None
    finally:
        gc.enable()


# tests/test_accelerator.py: test_prepared_objects_are_referenced, test_can_pickle_dataloader
def test_prepare_leaves_it_as_it_is_and_it_can_be_pickled():
    accelerator = Accelerator(cpu=True)
    made = accelerated(TensorDataset(torch.arange(6)), 2)
    assert accelerator.prepare(made) is made
    again = pickle.loads(pickle.dumps(made))
    rest = pickle.loads(pickle.dumps(skip_first_batches(made, 1)))
    assert [batch[0].tolist() for batch in again] == [[0, 1], [2, 3], [4, 5]]
    assert [batch[0].tolist() for batch in rest] == [[2, 3], [4, 5]]


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.randn(1)), torch.nn.Parameter(torch.randn(1))

    def forward(self, x):
        return x * self.a + self.b


# tests/test_state_checkpointing.py: test_can_resume_training, test_automatic_loading
# tests/test_accelerator.py: test_save_model_with_stateful_dataloader
@pytest.mark.parametrize("within", [False, True])
def test_save_state_and_load_state(tmp_path, within):
    def ready():
        set_seed(42)
        x = torch.randn(160, 1)
        train = accelerated(TensorDataset(x, 2 * x + 3), 16, shuffle=True)
        accelerator = Accelerator(
            cpu=True, project_config=ProjectConfiguration(automatic_checkpoint_naming=True, project_dir=tmp_path)
        )
        model = Line()
        model, optimizer, train = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3), train)
        accelerator.register_for_checkpointing(train)
        return accelerator, model, optimizer, train

    def fit(accelerator, model, optimizer, batches):
        for x, y in batches:
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        return model.a.item(), model.b.item()

    accelerator, _, optimizer, train = first = ready()
    batches = iter(train)
    fit(*first[:3], itertools.islice(batches, 3) if within else batches)
    accelerator.save_state(safe_serialization=False)
    expected = fit(*first[:3], batches if within else train), optimizer.state_dict()
    accelerator, _, optimizer, train = second = ready()
    fit(*second[:3], itertools.islice(train, 1))
    accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_0"))
    found = fit(*second[:3], train), optimizer.state_dict()
    assert found == expected
