"""What fastdata's datasets share: samples by number, subsets and splits, and what the Loader asks of them."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Protocol

import numpy as np
from torch.utils.data import Dataset

from fastdata.data.choice import checked, disambiguate, part_of, places
from fastdata.data.random import ROW_MASK
from fastdata.data.splitting import check_parts, check_split
from fastdata.data.timing import Allocate, Timing
from fastdata.data.transforms import TakesNoTransform
from fastdata.data.unsharded import warn_if_unsharded
from fastdata.data.weights import HasClasses, counted
from fastdata.shared_memory import SharedArray
from fastdata.store.format import Labels

__all__ = ["Labelled", "SlotDataset"]

Array = np.ndarray[Any, np.dtype[Any]]


class Labelled(Protocol):
    """Samples with labels and names."""

    @property
    def labels(self) -> Labels: ...

    @property
    def targets(self) -> Array:
        """int64 [n] or float32 [n, columns]."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Where a sample came from."""


class SlotDataset(TakesNoTransform, HasClasses, Dataset[Any]):
    """A dataset whose batches a Loader's workers write into shared memory.

    Attributes:
        channels_last: whether batches are [n, H, W, C], to be shown as [n, C, H, W].
    """

    channels_last: ClassVar[bool] = False

    def __init__(self) -> None:
        self._chosen: SharedArray | None = None  # keys of a subset; in shared memory, so that it pickles small

    @property
    def _all(self) -> Labelled:
        """The whole set, of which this may be a part."""
        raise NotImplementedError

    def read_batch(
        self,
        indices: Array,
        *,
        seed: int,
        epoch: int,
        repeats: Array | None = None,
        allocate: Allocate = np.empty,
        timing: Timing | None = None,
    ) -> tuple[Array, Array]:
        """A batch as the Loader takes it: samples, and their targets, int64 [n] or float32 [n, columns], or large ones.

        `repeats` says which time in this epoch each sample comes; every time it looks otherwise. `allocate(shape, dtype)` gives
        the memory for the samples; `timing` is added to.
        """
        raise NotImplementedError

    def sample_bytes(self) -> int:
        """Bytes of the largest sample, before a transform."""
        raise NotImplementedError

    def with_size(self, size: int | None) -> Any:
        """The same samples from another stored size, as a dataset of the same kind."""
        raise NotImplementedError

    def with_crop_size(self, side: int) -> Any:
        """The same samples with another side of the crop's output."""
        raise TypeError(f"the crop of a {type(self).__name__} has one size: make another dataset")

    def __len__(self) -> int:
        warn_if_unsharded()
        return len(self._all) if self._chosen is None else len(self._chosen.array)

    @property
    def large_targets(self) -> bool:
        """Whether targets lie in memory that is allocated as the samples' is."""
        return False

    def rows(self, indices: Any) -> Array:
        """Rows of the whole set for indices of this dataset."""
        return self._keys(indices) & ROW_MASK

    def _keys(self, indices: Any) -> Array:
        """What names samples to the random numbers: the row, and above it which time the same row stands in a subset."""
        indices = np.asarray(indices, np.int64)
        chosen: Array = indices if self._chosen is None else self._chosen.array[indices]
        return chosen

    @property
    def classes(self) -> list[str]:
        return list(self._all.labels.names)

    @property
    def targets(self) -> Array:
        return np.array(self._all.targets) if self._chosen is None else self._all.targets[self._chosen.array & ROW_MASK]

    def _class_counts(self) -> tuple[dict[int, int], int]:
        if self._all.labels.kind != "class":
            raise ValueError(f"class_weights needs classes; this dataset has labels of kind {self._all.labels.kind!r}")
        return counted(self.targets), len(self._all.labels.names)

    def name(self, index: int) -> str:
        """Where a sample came from: its path, relative to what was prepared."""
        return self._all.name(int(self.rows(checked(index, len(self)))))

    def _like(self, **parts: Any) -> Any:
        other = copy.copy(self)
        other.__dict__.update(parts)
        return other

    def subset(self, indices: Any) -> Any:
        """The samples at `indices`, in that order, as a dataset of the same kind.

        Samples keep their random numbers; where one stands several times, each time has its own.
        """
        return self._like(_chosen=SharedArray.of(disambiguate(self._keys(places(indices, len(self))))))

    def split(self, fraction: float, *, seed: int, stratify: bool = False) -> tuple[Any, Any]:
        """Two disjoint datasets, the first with `fraction` of the samples, chosen by `seed`; each keeps the order.

        Args:
            fraction: between 0 and 1.
            seed: same seed, same split.
            stratify: the same fraction of every class, rounded.

        Raises:
            TypeError, ValueError: a wrong argument, or one part would be empty.
        """
        check_split(fraction, seed, stratify)
        if stratify and self._all.labels.kind != "class":
            raise ValueError(f"stratify needs classes; this dataset has labels of kind {self._all.labels.kind!r}")
        classes = self.targets if stratify else None
        first = part_of(fraction, seed, self._keys(np.arange(len(self))), classes)
        check_parts(fraction, first, classes)
        return self.subset(first), self.subset(~first)
