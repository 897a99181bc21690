"""The base of fastdata's datasets: samples by number, subsets, splits, and the interface to the Loader."""

from __future__ import annotations

import copy
import inspect
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from fastdata.data.choice import check_split, checked, disambiguate, part_of, positions
from fastdata.data.random import ROW_MASK
from fastdata.data.targets import to_tensors
from fastdata.store.store import StoreLocation, Use
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


@dataclass
class Timing:
    """Seconds that a batch took to read its images' bytes, to decode them, and to resize and flip."""

    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0


class Fixed:
    """A base that forbids setting its FIXED attributes again, as they were used when the object was made."""

    FIXED: Collection[str]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.FIXED and name in self.__dict__:
            kind = type(self).__name__
            raise AttributeError(f"{name} is fixed when a {kind} is made: make another {kind}, with {name}={value!r:.60}")
        super().__setattr__(name, value)


def in_one_line(dataset: Any, *parts: str) -> str:
    """Return the repr of a dataset with the parts that are not empty."""
    return f"{type(dataset).__name__}({', '.join(part for part in parts if part)})"


def counted_of(count: int, whole: int, what: str) -> str:
    """Return "1,000 images", or "800 of 1,000 images" for a subset."""
    return f"{count:,} {what}" if count == whole else f"{count:,} of {whole:,} {what}"


def shown(path: Path | StoreLocation) -> str:
    """Return a path, relative to the working folder if it lies inside, or a URL."""
    if isinstance(path, Path):
        with suppress(OSError, ValueError):  # the working folder is gone, or is another one
            return str(path.relative_to(Path.cwd()))
    return str(path)


def inside(dataset: Any) -> Sequence[Any]:
    """Return the datasets that torch's Subset or ConcatDataset wraps; [] for other datasets."""
    return [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets if isinstance(dataset, ConcatDataset) else []


def checksum(dataset: Any) -> int:
    """Return a checksum of the attributes that identify a dataset's samples: equal samples give equal numbers."""
    classes, indices, targets = (inspect.getattr_static(dataset, name, None) for name in ("classes", "indices", "targets"))
    names = classes if isinstance(classes, list | tuple) else ()  # a property might read all samples
    total = zlib.crc32(repr((getattr(dataset, "identity", type(dataset).__name__), names)).encode())
    for values in (indices, targets):
        one = next(iter(values), None) if isinstance(values, list | tuple | range) else values
        if isinstance(one, int | float | np.ndarray | np.number | torch.Tensor):
            with suppress(TypeError, ValueError):  # lists of several lengths, or tensors of a GPU
                total = zlib.crc32(np.ascontiguousarray(values).data, total)
    for each in inside(dataset):
        total = zlib.crc32(str(checksum(each)).encode(), total)
    return total


class RowsDataset(Dataset[Any]):
    """Rows of a whole set: all of them, or a subset."""

    def __init__(self) -> None:
        self._chosen: SharedArray | None = None  # a subset's keys; in shared memory, so that pickles are small

    @property
    def _all(self) -> Any:
        """The whole set, of which this dataset may be a part. The set has labels, targets, a length and `shards_of(rows)`."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._all) if self._chosen is None else len(self._chosen.array)

    def rows(self, indices: Any) -> Array:
        """Return the rows of the whole set for indices of this dataset."""
        return self._keys(indices) & ROW_MASK

    def _keys(self, indices: Any) -> Array:
        """Return the keys of the samples' random numbers: the row, and in the bits above it the row's repetition in a subset."""
        indices = np.asarray(indices, np.int64)
        chosen: Array = indices if self._chosen is None else self._chosen.array[indices]
        return chosen

    def shards_of(self, indices: Any) -> Array:
        """Return the shard that each sample lies in, int64. In a sum of datasets, shards are numbered across all stores.

        Raises:
            StoreError: the samples lie in no store.
        """
        return self._all.shards_of(self.rows(indices))  # type: ignore[no-any-return]

    @property
    def identity(self) -> Any:
        """A key that is equal for datasets of the same samples: checksums of the stores and of the chosen rows."""
        return self._sums, 0 if self._chosen is None else zlib.crc32(self._chosen.array.data)

    @property
    def _sums(self) -> list[str]:
        """The checksums of the manifests of the stores that this dataset reads, or another key of the data."""
        stores = self._all.stores.values()
        return [store.manifest.xxh3_128 for store in stores] or [f"{zlib.crc32(self._all.targets.data):08x}"]

    @property
    def classes(self) -> list[str]:
        return list(self._all.labels.names)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return {name: k for k, name in enumerate(self.classes)}

    @property
    def targets(self) -> Array:
        return np.array(self._all.targets) if self._chosen is None else self._all.targets[self._chosen.array & ROW_MASK]

    @property
    def transform(self) -> Any:
        return None

    @transform.setter
    def transform(self, transform: Any) -> None:
        raise TypeError(f"{type(self).__name__} has no transform, which only images have: change the batches in your loop")

    def _like(self, **parts: Any) -> Any:
        other = copy.copy(self)
        other.__dict__.update(parts)
        return other

    def subset(self, indices: Any) -> Any:
        """Return the samples at `indices`, in that order, or where a mask of booleans is True, as a dataset of the same kind.

        Samples keep their random numbers; each repetition of a sample has its own.
        """
        return self._like(_chosen=SharedArray.of(disambiguate(self._keys(positions(indices, len(self))))))

    def split(self, fraction: float, *, seed: int, stratify: bool = False) -> tuple[Any, Any]:
        """Return two disjoint datasets, the first with `fraction` of the samples, drawn by `seed`; both keep the order.

        Args:
            fraction: between 0 and 1.
            seed: determines the split.
            stratify: take the same fraction of every class, rounded. For a table, whole-number targets count as classes.

        Raises:
            TypeError, ValueError: an argument is wrong, or one part would be empty.
        """
        check_split(fraction, seed)
        first = part_of(fraction, seed, self._keys(np.arange(len(self))), self._strata() if stratify else None)
        return self.subset(first), self.subset(~first)

    def _strata(self) -> Array:
        """Return the class of each sample, for a stratified split."""
        if self._all.labels.kind != "class":
            raise ValueError(f"stratify needs classes; the labels are of kind {self._all.labels.kind!r}: leave stratify out")
        return self.targets


class SlotDataset(RowsDataset):
    """A dataset whose batches a Loader's workers write into shared memory."""

    def read_batch(
        self,
        indices: Array,
        *,
        seed: int,
        epoch: int,
        repeats: Array | None = None,
        allocate: Allocate = np.empty,
        timing: Timing | None = None,
    ) -> tuple[Any, Any]:
        """Return a batch's samples and targets for the Loader. Targets are int64 [n], float32 [n, columns], columns or masks.

        Args:
            indices: of the samples, int64 [n].
            seed, epoch: what the samples' random numbers depend on.
            repeats: how often each sample came before in this epoch; each repetition draws other random numbers.
            allocate: a function of (shape, dtype) that returns memory for samples and large targets.
            timing: the Timing to which this batch's seconds are added.
        """
        raise NotImplementedError

    def uses(self, indices: Array) -> list[Use]:
        """Return the shards of remote stores in which these samples lie; empty if nothing is remote."""
        return []

    @property
    def remote(self) -> bool:
        """Whether the last sample (memory takes the first ones) is still remote. A Loader then shuffles by lanes."""
        return len(self) > 0 and bool(self.uses(np.array([len(self) - 1])))

    def assemble(self, arrays: Sequence[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        """Return a batch as the Loader delivers it, (samples, targets).

        Args:
            arrays: what `read_batch` wrote into allocated memory, in this order.
            targets: the targets that it returned, if they are not large.
        """
        return arrays[0], arrays[1] if self.large_targets else to_tensors(targets)

    def sample_bytes(self) -> int:
        """Return the bytes of the largest sample, before a transform."""
        raise NotImplementedError

    def with_size(self, size: int | None) -> Any:
        """Return the same samples in another stored size, as a dataset of the same kind."""
        raise NotImplementedError

    def with_crop_size(self, side: int) -> Any:
        """Return the same samples with another side of the crop's output."""
        raise TypeError(f"{type(self).__name__} cannot change the size of a crop: make another dataset")

    @property
    def large_targets(self) -> bool:
        """Whether targets are written into allocated memory, as the samples are."""
        return False

    @property
    def arrays_per_batch(self) -> int:
        """The number of arrays that `read_batch` allocates."""
        return 1 + self.large_targets

    def name(self, index: int) -> str:
        """Return where a sample came from: its path, relative to the source."""
        return self._all.name(int(self.rows(checked(index, len(self)))))  # type: ignore[no-any-return]
