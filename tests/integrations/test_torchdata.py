"""torchdata's StatefulDataLoader over our datasets, and its nodes over a Loader; torchmetrics in our Trainer.

What is looked at follows torchdata's own test/stateful_dataloader/test_state_dict.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torchdata.nodes import IterableWrapper, Mapper
from torchdata.nodes import Loader as NodesLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from common import train_loader, val_loader
from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Trainer
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


def test_torchmetrics_objects_in_our_trainer():
    torch.manual_seed(0)
    model = nn.Sequential(GPUNormalize(0.0, 1.0), nn.Flatten(), nn.Linear(3 * 24 * 24, 3))

    metrics = {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "each": MetricCollection({"macro": MulticlassAccuracy(3, average="macro")}),
    }
    with val_loader(2) as val:
        trainer = Trainer(
            model,
            lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            torch.optim.SGD(model.parameters(), lr=0.1),
            metrics=metrics,
            device="cpu",
            precision="fp32",
        )
        found = trainer.evaluate(val)
    dataset = LMDBDataset(store(), size=64, crop=CenterCrop(24))
    with torch.no_grad():
        guesses = model(torch.stack([dataset[k][0] for k in range(COUNT)])).argmax(1).numpy()
    right = guesses == dataset.targets
    recalls = [right[dataset.targets == k].mean() for k in range(3)]
    assert found["accuracy"] == pytest.approx(right.mean())
    assert next(value for name, value in found.items() if "macro" in name) == pytest.approx(np.mean(recalls))
