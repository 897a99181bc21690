"""torchdata's own tests of StatefulDataLoader, with Loaders: a state that is taken anywhere, loaded anywhere.

From torchdata 0.11.0 (BSD-3-Clause), test/stateful_dataloader/test_state_dict.py and test_sampler.py. Each test names its source.
"""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from own import Numbers, loader


class Mapped(Dataset):
    """Rows of several kinds; `draws`: each is drawn from torch's generator instead."""

    def __init__(self, size, draws=False):
        self.size, self.draws = size, draws

    def __len__(self):
        return self.size

    def __getitem__(self, k):
        if self.draws:
            k = torch.randint(self.size, (1,)).item()
        return {"id": k, "strcol": f"strcol_{k}", "listcol": [k, k + 1, k + 2]}


def identity(rows):
    return rows


@pytest.fixture
def make():
    """A function that makes Loaders, which end with the test."""
    with ExitStack() as stack:
        yield lambda dataset, batch_size=1, **options: stack.enter_context(
            loader(dataset, batch_size, collate_fn=identity, **options)
        )


def some(made, count):
    return list(itertools.islice(made, count))


# TestStatefulDataLoaderMap: test_no_mp, test_mp_x, test_mp_pw, test_random_state; TestStatefulSampler: the same
# TestInitialState: test_load_state_after_initial_state_dict, test_load_state_before_initial_state_dict
@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler}], ids=["shuffle", "sampler"])
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("interrupt", [0, 1, 10])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_where_the_next_loader_begins(make, workers, interrupt, draws, options):
    dataset = Mapped(100, draws)
    first, second = (
        make(
            dataset, 7, num_workers=workers, **{name: value if value is True else value(dataset) for name, value in options.items()}
        )
        for _ in range(2)
    )
    batches = iter(first)
    some(batches, interrupt)
    state = first.state_dict()
    expected = list(batches)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert list(second) == expected and len(expected) == 15 - interrupt


# TestSnapshotZero: test_map, test_map_shuffle, test_map_iterrupted_shuffle
# TestInitialState: test_initial_state, test_load_then_state
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_back_to_its_own_states(make, workers, draws, shuffle):
    made = make(Mapped(30, draws), num_workers=workers, shuffle=shuffle)
    before = made.state_dict()
    batches = iter(made)
    start = made.state_dict()
    seen = some(batches, 4)
    within = made.state_dict()
    made.load_state_dict(within)
    seen += made
    assert len(seen) == 30 and before == start
    made.load_state_dict(start)
    assert made.state_dict() == start and list(made) == seen


# TestSnapshotEnd: test_map, test_map_shuffle; TestMultiEpochSDL: test_multi_epoch_sdl
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_state_after_an_epoch_begins_the_next(make, epochs, workers, shuffle):
    straight, first, second = (make(Mapped(100, draws=True), 4, num_workers=workers, shuffle=shuffle) for _ in range(3))
    expected = [list(straight) for _ in range(epochs + 2)]
    assert [list(first) for _ in range(epochs)] == expected[:epochs]
    second.load_state_dict(first.state_dict())
    assert [list(second) for _ in range(2)] == expected[epochs:]


# TestEndOfEpochBehavior: test_end_of_epoch_behavior, where torchdata's state at the last batch makes an empty epoch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_the_last_batch_is_that_after_the_epoch(make, workers):
    made, again = (make(Mapped(20), num_workers=workers, shuffle=True) for _ in range(2))
    states = [made.state_dict() for _ in made]
    assert states[-1] == made.state_dict()
    again.load_state_dict(states[-1])
    assert again.epoch == 1 and list(again) == list(made)


# TestNumWorkersMismatch: test_num_workers_mismatch, which torchdata refuses
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_another_number_of_workers(make, before, after):
    first, second = (make(Mapped(20), num_workers=workers, shuffle=True) for workers in (before, after))
    batches = iter(first)
    some(batches, 3)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(batches)


# TestConcurrentDataLoaders: test_two_dataloaders
def test_beside_torchs_dataloader(make):
    dataset = Mapped(40)
    expected = list(DataLoader(dataset, num_workers=2, collate_fn=identity))
    assert list(map(list, make(dataset, num_workers=2))) == expected


# TestJsonSerDe: test_json_serde_single_process_map, test_json_serde_multi_process_map
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_json(make, workers):
    first, second = (make(Mapped(20), num_workers=workers, shuffle=True) for _ in range(2))
    batches = iter(first)
    some(batches, 3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert list(second) == list(batches)


class Broken(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, k):
        raise ValueError("Iteration error")


# TestInitialState: test_iteration_error
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_dataset(make, workers):
    with pytest.raises(ValueError, match="Iteration error"):
        next(iter(make(Broken(), num_workers=workers)))


# TestNotStatefulSamplerSDL: test_notstatefulSDL
@pytest.mark.parametrize("kind", [RandomSampler, SequentialSampler])
@pytest.mark.parametrize("interrupt", [10, 50, 80])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_without_a_state(make, workers, interrupt, kind):
    dataset = Mapped(100)
    straight, first, second = (make(dataset, num_workers=workers, sampler=kind(dataset)) for _ in range(3))
    seen = some(first, interrupt)
    second.load_state_dict(first.state_dict())
    assert seen + list(second) == list(straight)


def plain(made):
    return [batch.tolist() for batch in made]


# test_sampler.py: test_dataloader_state_dict
def test_the_state_with_a_stateful_sampler():
    dataset = Numbers(100)
    full, first, second = (
        loader(dataset, 10, sampler=StatefulDistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)) for _ in range(3)
    )
    some(first, 5)
    second.load_state_dict(first.state_dict())
    assert plain(second) == plain(full)[5:]


# test_sampler.py: test_drop_last_effect, test_data_distribution_across_replicas
@pytest.mark.parametrize(("replicas", "drop_last"), [(3, False), (3, True), (5, False)])
def test_the_parts_of_a_distributed_sampler(replicas, drop_last):
    dataset = Numbers(100)
    parts = []
    for rank in range(replicas):
        sampler = StatefulDistributedSampler(dataset, num_replicas=replicas, rank=rank, shuffle=False, drop_last=drop_last)
        parts.append(plain(loader(dataset, sampler=sampler)))
    assert {len(part) for part in parts} == {100 // replicas + (replicas == 3 and not drop_last)}
    rows = [row for part in parts for (row,) in part]
    assert set(rows) == set(range(100 - (replicas == 3 and drop_last)))


# test_sampler.py: test_data_order_with_shuffle, test_data_order_without_shuffle
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_of_a_distributed_sampler(shuffle):
    dataset = Numbers(100)
    sampler = StatefulDistributedSampler(dataset, num_replicas=1, rank=0, shuffle=shuffle)
    expected = list(sampler)
    assert [row for batch in plain(loader(dataset, 32, sampler=sampler)) for row in batch] == expected
    assert (expected == list(range(100))) != shuffle


# test_sampler.py: test_seed_replicability
def test_the_seed_decides_the_order():
    dataset = Numbers(100)
    one, same, other = (plain(loader(dataset, shuffle=True, seed=seed)) for seed in (5, 5, 6))
    assert one == same != other
