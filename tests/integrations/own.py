"""What the clients' own tests are given here: Loaders where they make DataLoaders."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from fastdata import Loader
from fastdata.integrations.accelerate import AcceleratedLoader


def loader(dataset: Any, batch_size: int | None = 1, **options: Any) -> Loader:
    """A Loader with a DataLoader's defaults."""
    return Loader(dataset, batch_size, **{"num_workers": 0, **options})


def accelerated(dataset: Any, batch_size: int | None = 1, **options: Any) -> AcceleratedLoader:
    return AcceleratedLoader(loader(dataset, batch_size, **options))


class Numbers(Dataset[torch.Tensor]):
    """0, 1, 2 ... as tensors of one number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> torch.Tensor:
        return torch.tensor(k)
