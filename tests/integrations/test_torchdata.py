"""torchdata's StatefulDataLoader over our datasets, and its nodes over a Loader.

What is looked at follows torchdata's own test/stateful_dataloader/test_state_dict.py.
"""

from __future__ import annotations

import pytest
import torch
from torchdata.nodes import IterableWrapper, Mapper
from torchdata.nodes import Loader as NodesLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from common import train_loader
from fastdata import CenterCrop, LMDBDataset
from stores import COUNT, sha, store


def stateful(workers):
    dataset = LMDBDataset(store(), size=64, crop=CenterCrop(24))
    generator = torch.Generator().manual_seed(5)
    return StatefulDataLoader(dataset, 8, shuffle=True, num_workers=workers, generator=generator)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [1, 3])
def test_stateful_dataloader_resumes_with_the_next_rows(workers, done):
    first = stateful(workers)
    batches = iter(first)
    seen = [next(batches) for _ in range(done)]
    state = first.state_dict()
    rest = list(batches)
    second = stateful(workers)
    second.load_state_dict(state)
    found = list(second)
    assert len(found) == len(rest) == 6 - done
    assert all(torch.equal(a, b) for new, old in zip(found, rest, strict=True) for a, b in zip(new, old, strict=True))
    images = torch.cat([x for x, _ in seen + rest])
    dataset = first.dataset
    bytes_of = sorted(image.numpy().tobytes() for image in images)
    assert bytes_of == sorted(dataset[k][0].contiguous().numpy().tobytes() for k in range(COUNT))


def test_nodes_over_a_loader():
    with train_loader(0) as loader:
        expected = [sha(loader) for _ in range(2)]
    with train_loader() as loader:
        nodes = NodesLoader(Mapper(IterableWrapper(loader), lambda batch: batch.to("cpu")), restart_on_stop_iteration=True)
        assert [sha(nodes), sha(nodes)] == expected
