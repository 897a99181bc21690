"""Turns the dataset given to a Loader into the one that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.data.dataset import SlotDataset, inside
from fastdata.errors import warn_user
from fastdata.tables import TableDataset


def settings(dataset: Any) -> list[Any]:
    """Return the views and the transform of a dataset, and of the datasets that it wraps."""
    return [getattr(dataset, "views", None), getattr(dataset, "transform", None), *map(settings, inside(dataset))]


def unwrapped(dataset: Any) -> Any:
    """Return torch's Subset or ConcatDataset of fastdata's datasets as one of fastdata's; any other, or a subclass, as is."""
    if type(dataset) is Subset:
        whole = unwrapped(dataset.dataset)
        return whole.subset(dataset.indices) if isinstance(whole, SlotDataset | TableDataset) else dataset
    if type(dataset) is ConcatDataset:
        parts = [unwrapped(part) for part in dataset.datasets]
        _warn_of_classes(parts)
        if all(isinstance(part, SlotDataset) for part in parts):
            with suppress(ValueError):  # different crops or labels, for instance
                joined = reduce(add, parts)
                return joined if isinstance(joined, SlotDataset) else dataset
    return dataset


def _warn_of_classes(parts: Sequence[Any]) -> None:
    """Warn if the number of a class or category, or the place of a value in targets, means something else in another dataset."""
    known = dict[tuple[str, int], str]()
    for part in parts:
        own = part.classes if isinstance(part, SlotDataset | TableDataset) else ()
        names_of = getattr(getattr(part, "columns", None), "names", None)
        columns = {name: names_of(name) for name in part.columns} if names_of else getattr(part, "categories", {})
        for what, names in {"target": own, **columns}.items():
            for k, name in enumerate(names):
                if known.setdefault((what, k), name) != name:
                    warn_user(
                        f"{what} {k} is {known[what, k]} in one dataset of this ConcatDataset, and {name} in another: their "
                        "lists of names must be equal (for classes, prepare with --classes; a TableDataset takes classes=)"
                    )
                    return
