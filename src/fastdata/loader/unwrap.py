"""The dataset that a Loader was given, as the one that it reads."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.data.dataset import SlotDataset
from fastdata.errors import LoaderError
from fastdata.loader.direct import is_direct
from fastdata.tables.dataset import TableDataset

__all__ = ["Given", "unwrapped"]


class Given:
    """What a Loader was given, which notices when another transform is set on it.

    Args:
        dataset: the Loader's argument.

    Attributes:
        dataset: what is read: torch's Subset and ConcatDataset of fastdata's datasets are one dataset of fastdata's.
    """

    def __init__(self, dataset: Any) -> None:
        self._given, self.dataset = dataset, unwrapped(dataset)
        self._looks = _looks(self.dataset), _looks(self._given)

    def check_collate(self) -> None:
        """Raises ValueError if it is a dataset that has its own way to make batches."""
        if isinstance(self.dataset, SlotDataset) or is_direct(self.dataset):
            raise ValueError(
                f"collate_fn is for datasets of others; batches of a {type(self.dataset).__name__} are made as one: give it "
                "a transform, or change the batch in the loop"
            )

    def changed(self) -> bool:
        """Whether another transform, or view, was set since this was last asked: workers that were started before lack it.

        Raises:
            LoaderError: that was done to a dataset inside of a Subset or ConcatDataset that was unwrapped.
        """
        before, now = self._looks, (_looks(self.dataset), _looks(self._given))
        if self.dataset is not self._given and now[1] != before[1]:
            raise LoaderError(
                f"a transform was set inside of a {type(self._given).__name__} after the Loader had taken the samples out of it: "
                "set loader.dataset.transform, or make the Loader afterwards"
            )
        self._looks = now
        return now != before


def _looks(dataset: Any) -> list[Any]:
    """What may be set on a dataset, and on those that it wraps: its view, or its transform."""
    inside = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets if isinstance(dataset, ConcatDataset) else []
    return [getattr(dataset, "view", None), getattr(dataset, "transform", None), *map(_looks, inside)]


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
