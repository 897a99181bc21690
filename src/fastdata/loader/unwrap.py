"""Turns the dataset given to a Loader into the one that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.data.dataset import SlotDataset, inside
from fastdata.errors import warn_user
from fastdata.tables import TableDataset


def settings(dataset: Any) -> list[Any]:
    """Return the view and the transform of a dataset, and of the datasets that it wraps."""
    return [getattr(dataset, "views", None), getattr(dataset, "transform", None), *map(settings, inside(dataset))]


def unwrapped(dataset: Any) -> Any:
    """Return torch's Subset or ConcatDataset of fastdata's datasets as one of fastdata's; others, and subclasses, as they are."""
    if type(dataset) is Subset:
        whole = unwrapped(dataset.dataset)
        return whole.subset(dataset.indices) if isinstance(whole, SlotDataset | TableDataset) else dataset
    if type(dataset) is ConcatDataset:
        parts = [unwrapped(part) for part in dataset.datasets]
        _warn_of_classes(parts)
        if not all(isinstance(part, SlotDataset) for part in parts):
            return dataset
        try:
            joined = reduce(add, parts)
        except ValueError:  # different crops or labels, for instance
            return dataset
        return joined if isinstance(joined, SlotDataset) else dataset
    return dataset


def _warn_of_classes(parts: Sequence[Any]) -> None:
    """Warn if the number of a class, or the place of a value in targets, means something else in another dataset."""
    named = [part.classes for part in parts if isinstance(part, SlotDataset | TableDataset) and part.classes]
    pairs = (enumerate(zip(named[0], other, strict=False)) for other in named[1:])
    if clash := next(((k, one, two) for pair in pairs for k, (one, two) in pair if one != two), None):
        warn_user(
            f"target {clash[0]} is {clash[1]} in one dataset of this ConcatDataset, and {clash[2]} in another: prepare the second "
            "with --classes of the first (a TableDataset takes classes=), so that both number them alike"
        )
