"""Turns the dataset given to a Loader into the one that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.data.dataset import SlotDataset, inside
from fastdata.errors import LoaderError, warn_user
from fastdata.loader.direct import is_direct
from fastdata.tables import TableDataset


class WatchedDataset:
    """The dataset of a Loader, which it notices another transform of.

    Attributes:
        dataset: the dataset to read. torch's Subset and ConcatDataset of fastdata's datasets become one dataset of fastdata's.
    """

    def __init__(self, dataset: Any) -> None:
        self._original = dataset
        self.dataset = _unwrap(dataset)
        self._direct = is_direct(self.dataset)
        self._settings, self._originals = _settings(self.dataset), _settings(dataset)

    def changed(self) -> bool:
        """Return whether a transform or view was set since the last call: workers started before lack it.

        Raises:
            LoaderError: it was set on a dataset inside a Subset or ConcatDataset that was unwrapped.
        """
        if self._direct:
            return False
        if self.dataset is not self._original and _settings(self._original) != self._originals:
            raise LoaderError(
                f"a transform was set inside a {type(self._original).__name__} after the Loader had unwrapped it: "
                "set loader.dataset.transform, or make the Loader afterwards"
            )
        before, self._settings = self._settings, _settings(self.dataset)
        return self._settings != before


def _settings(dataset: Any) -> list[Any]:
    """Return the view and the transform of a dataset, and of those that it wraps."""
    return [getattr(dataset, "views", None), getattr(dataset, "transform", None), *map(_settings, inside(dataset))]


def _unwrap(dataset: Any) -> Any:
    """Return torch's Subset or ConcatDataset of fastdata's datasets as one of fastdata's; others, and subclasses, as they are."""
    if type(dataset) is Subset:
        whole = _unwrap(dataset.dataset)
        return whole.subset(dataset.indices) if isinstance(whole, SlotDataset | TableDataset) else dataset
    if type(dataset) is ConcatDataset:
        parts = [_unwrap(part) for part in dataset.datasets]
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
