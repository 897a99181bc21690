"""Sizes and crops that change from epoch to epoch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from stores import COUNT, square, store
from support import Array, worker_processes

SCHEDULE = {1: 64, 2: (96, 48), 4: (None, 80)}  # epoch 3 is as epoch 2


def scheduled(epoch: int) -> Any:
    size, crop = {0: (None, 60), 1: (64, 60), 2: (96, 48), 3: (96, 48), 4: (None, 80)}[epoch]
    return LMDBDataset(store(), size=size, crop=RandomResizedCrop(crop), hflip=0.5)


def epochs(loader: Loader, count: int) -> list[Array]:
    return [torch.cat([b[0][: b.valid].clone() for b in loader]).permute(0, 2, 3, 1).numpy() for _ in range(count)]


def counted(path: Path, pixels: Array) -> Array:
    """What a transform gets, counted in a file, which all workers can."""
    with path.open("ab") as file:
        file.write(b".")
    return pixels


@pytest.mark.parametrize("workers", [0, 2])
def test_a_schedule_changes_size_and_crop_without_new_workers_or_lost_batches(workers: int, tmp_path: Path) -> None:
    want = [scheduled(e).read_batch(np.arange(COUNT), seed=7, epoch=e)[0] for e in range(5)]
    dataset = scheduled(0)
    dataset.transform = partial(counted, tmp_path / "made")
    with Loader(dataset, 8, seed=7, num_workers=workers, schedule=SCHEDULE) as loader:
        found = epochs(loader, 1)
        alive = sorted(worker_processes())
        found += epochs(loader, 4)
        assert sorted(worker_processes()) == alive and len(alive) >= workers
        stats = loader.stats()
        assert stats.copies == 0 and stats.slot_bytes >= stats.slots * 8 * 80 * 80 * 3  # room for the largest
        ahead = 2 * workers * 8
        assert (tmp_path / "made").stat().st_size <= 5 * COUNT + ahead, "some were made twice"
    assert all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))


def test_a_schedule_that_does_not_fit_the_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="the dataset has no crop"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={0: (None, 16)})
    with pytest.raises(ValueError, match=r"schedule is {0: 'large'}, but must be"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={0: "large"})
    with pytest.raises(Exception, match="has no size 7"):
        Loader(LMDBDataset(square()), 8, num_workers=0, schedule={3: 7})
    with pytest.raises(ValueError, match="a crop of 16 was asked for, but the dataset has several crops"):
        Loader(LMDBDataset(square(), crop=[CenterCrop(16)] * 2), 8, num_workers=0, schedule={1: (None, 16)})
    with pytest.raises(TypeError, match="sizes need one of fastdata's datasets of images; this is a TensorDataset"):
        Loader(TensorDataset(torch.arange(4)), 2, num_workers=0, schedule={1: 64})
