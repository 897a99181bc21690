"""The loaders that several clients are given."""

from __future__ import annotations

import itertools
from typing import Any

from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from stores import store


def train_loader(workers: int = 2, seed: int = 3, batch_size: int = 8) -> Loader:
    """42 images in a random order, with random crops and flips."""
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(24), hflip=0.5)
    return Loader(dataset, batch_size, shuffle=True, seed=seed, num_workers=workers)


def val_loader(workers: int = 0, batch_size: int = 16) -> Loader:
    """The same images in order, with nothing random."""
    return Loader(LMDBDataset(store(), size=64, crop=CenterCrop(24)), batch_size, num_workers=workers)


def flat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))
