"""The stored size and the side of the crop in each epoch: progressive resizing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastdata.data.dataset import SlotDataset

__all__ = ["Size", "Sizes", "sized"]


class Size(NamedTuple):
    """A stored size of the store, and the side of the crop's output; None: the dataset's own."""

    stored: int | None = None
    crop: int | None = None


class Sizes(tuple[tuple[int, Size], ...]):
    """Pairs of an epoch and the size from then on, in order; the first epoch is 0."""

    @classmethod
    def of(cls, schedule: Mapping[int, Any] | None, dataset: Any) -> Sizes:
        """Make sizes of a user's {epoch: stored size, or (stored size, crop)}; either may be None.

        Raises:
            ValueError: `schedule` has another form, or as `sized` does if the dataset lacks a size.
        """
        sizes = {0: Size()}
        for epoch, value in (schedule or {}).items():
            sizes[epoch] = Size(*value) if isinstance(value, tuple | list) and len(value) <= 2 else Size(value)
        numbers = [*sizes, *(n for size in sizes.values() for n in size if n is not None)]
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"schedule is {schedule!r}, but must be {{epoch: size}} or {{epoch: (size, crop)}}, whole numbers")
        for size in sizes.values():
            sized(dataset, size)
        return cls(sorted(sizes.items()))

    def at(self, epoch: int) -> Size:
        return next(size for first, size in reversed(self) if first <= epoch)


def sized(dataset: Any, size: Size) -> Any:
    """Return the dataset with another stored size and another side of its crop.

    Raises:
        TypeError: the dataset has no sizes.
        ValueError: the dataset has no crop.
    """
    if size != Size() and not isinstance(dataset, SlotDataset):
        raise TypeError(f"sizes need one of fastdata's datasets of images; this is a {type(dataset).__name__}")
    if size.stored is not None:
        dataset = dataset.with_size(size.stored)
    return dataset if size.crop is None else dataset.with_crop_size(size.crop)
