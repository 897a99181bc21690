"""The dataset of arrays and volumes, with masks that get the same crop and flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastdata.arrays.chunked import StoreArrays
from fastdata.data.choice import checked
from fastdata.data.dataset import Allocate, SlotDataset, Timing, counted_of, in_one_line, shown
from fastdata.data.in_memory import how_many
from fastdata.data.opening import RAMDataset
from fastdata.data.random import ROW_MASK, repeated, uniforms
from fastdata.errors import StoreError
from fastdata.images.crops import Crop
from fastdata.remote.bucket import Storage
from fastdata.remote.reader import locate
from fastdata.store.store import Use
from fastdata.types import Array, StrPath


class ArrayDataset(SlotDataset):
    """n-D arrays and volumes of a store that `fastdata-prep` made of .npy, .npz or NIfTI, with their masks.

    `ds[i]` is (array, target): a tensor with the stored dtype and axes, channels first if there are any, and an int class, a
    float32 vector, or -1 without labels. In a store with masks it is (array, mask); the mask is uint8 or uint16, without an axis
    of channels. A crop reads only the chunks that it touches. A `Loader` delivers arrays and masks as [B, ...], axes unchanged.

    Random crops and flips draw from torch's default generator; under `fastdata.Loader` they depend on (seed, epoch, sample).

    Args:
        path: a store made by `fastdata-prep`; a folder, or a URL.
        crop: RandomCrop or CenterCrop with a side for each axis except channels, such as RandomCrop((64, 64, 64)), or None.
        flips: a probability of a flip for each axis, or one for all axes. Each axis is flipped independently.
        ignore_index: the class of mask values outside of the array, where a crop is padded. Default: 255, or 65535 for uint16
            masks. If voxels of the masks have this class, pass it to ignore them too, or pass a number that no voxel has.
        cache, cache_size, storage: as for LMDBDataset.

    Attributes:
        classes: names of the classes, or of the columns of float targets.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset; also in a store with masks.
        class_voxels: with masks, a dict of the number of voxels of each class in all masks of the store, in class order.

    Raises:
        StoreError, FormatError, ValueError: as for fastdata.open.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        crop: Crop | None = None,
        flips: float | Sequence[float] = 0.0,
        ignore_index: int | None = None,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__()
        self._parts = [StoreArrays(locate(path, cache, cache_size, storage))]  # the arrays, and their masks if there are any
        self.crop, self.flips = self._checked_view(crop, flips)
        store, self.ignore_index = self._all.store, 255
        self.class_voxels: dict[int, int] = {}
        self._draws = 2 * self._all.axes  # random numbers that a sample needs: for flips, then for the crop
        if masks := store.manifest.section("masks"):
            self._parts.append(StoreArrays(store.location, mask=True, expected=store.manifest.xxh3_128))
            self.class_voxels = masks.by_class
            self.ignore_index = masks.outside(ignore_index, self._parts[1].dtype)
        elif ignore_index is not None:
            raise ValueError(f"ignore_index is {ignore_index}, but the store has no masks; prepare it with --masks FOLDER")

    def _checked_view(self, crop: Crop | None, flips: float | Sequence[float]) -> tuple[Crop | None, tuple[float, ...]]:
        axes = self._all.axes
        if crop is not None:
            if not isinstance(crop, Crop) or not crop.any_axes or crop.resizes:
                raise TypeError(f"crop is {crop!r}, but must be None, RandomCrop, or CenterCrop without resize")
            crop.sides(axes)
        chances = (float(flips),) * axes if isinstance(flips, int | float) else tuple(map(float, flips))
        if len(chances) != axes or not all(0 <= chance <= 1 for chance in chances):
            raise ValueError(f"flips is {flips}, but must be a probability from 0 to 1, or one for each of {axes} axes")
        return crop, chances

    @property
    def large_targets(self) -> bool:
        return len(self._parts) > 1

    @property
    def _all(self) -> StoreArrays:
        return self._parts[0]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        rows = self.rows(checked(index, len(self)))[None]
        u = torch.rand(self._draws, 1, dtype=torch.float64, device="cpu").numpy()
        values, targets = self._read(rows, u, np.empty)
        target = targets[0]
        return torch.from_numpy(values[0]), int(target) if target.ndim == 0 else torch.from_numpy(np.array(target))

    def _read(self, rows: Array, u: Array, allocate: Allocate) -> tuple[Array, Array]:
        """Return arrays and their masks or targets. u: random numbers, [draws, n]."""
        axes, sides = self._all.axes, self._all.sides[rows]
        starts = np.zeros_like(sides)
        if self.crop is not None:
            starts, sides = self.crop.starts(u[axes:], sides), np.broadcast_to(self.crop.sides(axes), sides.shape)
        boxes = starts, sides, u[:axes].T < self.flips
        values, *masks = (part.read_boxes(rows, boxes, part.mask * self.ignore_index, allocate) for part in self._parts)
        return values, masks[0] if masks else self._all.targets[rows]

    def uses(self, indices: Array) -> list[Use]:
        rows = self.rows(indices)
        return [use for part in self._parts for use in part.uses(rows)]

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
        started = perf_counter()
        keys = repeated(self._keys(indices), repeats)
        found = self._read(keys & ROW_MASK, uniforms(seed, epoch, keys, self._draws), allocate)
        if timing is not None:
            timing.read_s += perf_counter() - started
        return found

    def sample_bytes(self) -> int:
        """Return the bytes of the largest sample, its mask included."""
        rows, axes = self.rows(np.arange(len(self))), self._all.axes
        size = self._all.sides[rows].prod(axis=1) if self.crop is None else math.prod(self.crop.sides(axes))
        cells = [(1 if part.channels is None else part.channels[rows]) * part.dtype.itemsize for part in self._parts]
        return int(np.max(sum(cells) * size))

    def with_size(self, size: int | None) -> Any:
        if size is not None:
            raise StoreError(f"{self._all.store.location} has no size {size}: arrays are stored in their own sizes")
        return self

    def with_crop(self, crop: Crop | None, *, flips: float | Sequence[float] = 0.0) -> Any:
        """Return the same samples with another crop and other flips, such as for a validation set after `split`."""
        crop, flips = self._checked_view(crop, flips)
        return self._like(crop=crop, flips=flips)

    def __repr__(self) -> str:
        arrays = counted_of(len(self), len(self._all), f"arrays of {self._all.axes} axes")
        classes = f"{len(self.classes)} classes" if self._all.labels.kind == "class" else ""
        masks = "masks" if self.large_targets else ""
        crop = "" if self.crop is None else repr(self.crop)
        return in_one_line(self, arrays, str(self._all.dtype), classes, masks, crop, shown(self._all.store.location))


class RAMArrays(RAMDataset, ArrayDataset):
    """Arrays and their masks in memory; see RAMDataset."""

    def __init__(self, source: StrPath, *, max_bytes: int | None = None, shared: bool = True, **options: Any) -> None:
        super().__init__(source, **options)
        count = how_many(np.sum([part.sizes() for part in self._parts], axis=0), max_bytes)
        for part in self._parts:
            part.copy_to_memory(count, shared=shared)
