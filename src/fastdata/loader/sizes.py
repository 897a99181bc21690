"""Which stored size, and which side of the crop, an epoch has: progressive resizing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastdata.data.dataset import SlotDataset

__all__ = ["Size", "Sizes", "sized"]


class Size(NamedTuple):
    """stored: a size of the store; None: the dataset's own. crop: the side of the crop's output; None: the dataset's own."""

    stored: int | None = None
    crop: int | None = None


class Sizes(tuple[tuple[int, Size], ...]):
    """Pairs of an epoch and the size from it on, in order; the first epoch is 0."""

    def at(self, epoch: int) -> Size:
        return next(size for first, size in reversed(self) if first <= epoch)

    @classmethod
    def of(cls, schedule: Mapping[int, Any] | None) -> Sizes:
        """From what a user gives: {epoch: stored size, or (stored size, crop)}, either of which may be None.

        Raises:
            ValueError: it is not that.
        """
        steps = {0: Size()} | {
            epoch: Size(*value) if isinstance(value, tuple | list) else Size(value) for epoch, value in (schedule or {}).items()
        }
        numbers = [*steps, *(n for size in steps.values() for n in size if n is not None)]
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"schedule is {schedule!r}, but must be {{epoch: size}} or {{epoch: (size, crop)}}, whole numbers")
        return cls(sorted(steps.items()))

    def state(self) -> dict[int, list[int | None]]:
        """What `of` makes the same of; of plain values."""
        return {epoch: list(size) for epoch, size in self}

    def check(self, dataset: Any) -> None:
        """Raise unless every size can be had of a dataset."""
        for _, size in self:
            sized(dataset, size)

    def largest(self, dataset: SlotDataset) -> int:
        """Bytes of the largest sample of any size."""
        return int(max(sized(dataset, size).sample_bytes() for _, size in self))


def sized(dataset: Any, size: Size) -> Any:
    """A dataset with another stored size, and another side of its crop.

    Raises:
        TypeError: it has no sizes.
        ValueError: it has no crop.
    """
    if size != Size() and not isinstance(dataset, SlotDataset):
        raise TypeError(f"sizes need one of fastdata's datasets of images; this is a {type(dataset).__name__}")
    if size.stored is not None:
        dataset = dataset.with_size(size.stored)
    return dataset if size.crop is None else dataset.with_crop_size(size.crop)
