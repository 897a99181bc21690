"""torch's Subset and ConcatDataset of fastdata's datasets, as datasets of fastdata: so they keep the fast path."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.data.dataset import SlotDataset
from fastdata.data.tables import TableDataset

__all__ = ["unwrapped"]


def unwrapped(dataset: Any) -> Any:
    """Turn torch's Subset or ConcatDataset of fastdata's datasets into one dataset of fastdata's, with the same indices.

    Subclasses, which may change the items, and whatever else has no fast path, are returned as they are.
    """
    if type(dataset) is Subset:
        whole = unwrapped(dataset.dataset)
        return whole.subset(dataset.indices) if isinstance(whole, SlotDataset | TableDataset) else dataset
    if type(dataset) is ConcatDataset:
        parts = [unwrapped(part) for part in dataset.datasets]
        if not all(isinstance(part, SlotDataset) for part in parts):
            return dataset
        try:
            joined = reduce(add, parts)
        except ValueError:  # of different crops or labels, for instance
            return dataset
        return joined if isinstance(joined, SlotDataset) else dataset
    return dataset
