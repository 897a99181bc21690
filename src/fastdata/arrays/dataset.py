"""Arrays and volumes, and their masks: the same box and flips for both."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastdata.arrays.chunked import StoreArrays
from fastdata.data.choice import checked
from fastdata.data.dataset import SlotDataset
from fastdata.data.random import ROW_MASK, repeated, uniforms
from fastdata.data.shown import counted_of, in_one_line, shown
from fastdata.data.timing import Allocate, Timing
from fastdata.errors import LoaderError, StoreError
from fastdata.images.crops import Crop
from fastdata.images.masks import by_class, class_outside

__all__ = ["ArrayDataset"]

Array = np.ndarray[Any, np.dtype[Any]]
Boxes = tuple[Array, Array, Array]


class ArrayDataset(SlotDataset):
    """n-D arrays and volumes of a store, such as `fastdata-prep` makes of .npy, .npz, NIfTI and DICOM; and their masks.

    `ds[i]` is (array, target): a tensor of the stored dtype and axes, channels first if there are any; and an int class, a float32
    vector, or -1 without labels. In a store with masks it is (array, mask), the mask uint8 or uint16 without an axis of channels.
    Of a crop, only the chunks that it touches are read. A `Loader` delivers [B, ...] of both, axes as they are.

    Random crops and flips draw from torch's default generator; under `fastdata.Loader` they depend on (seed, epoch, sample).

    Args:
        path: a store made by `fastdata-prep`.
        crop: RandomCrop or CenterCrop with a side for each axis, channels aside, such as RandomCrop((64, 64, 64)); None: all of it.
        flips: probability of a flip along each axis, or along any of them; it is mirrored along each by itself.
        ignore_index: the class of what lies outside of the array, where a crop is padded; None: 255, or 65535 for uint16 masks.
            Where voxels have that class already, say whether they are to be ignored, as for MaskDataset.

    Attributes:
        classes: names of the classes, or of the columns of float targets.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset; also of a store with masks.
        class_voxels: of a store with masks: dict of class: voxels, in the order of the classes, counted in all masks, also those
            that a subset leaves out. `class_weights()` makes the weights of a loss of them.

    Raises:
        StoreError: there is no such store, or it is not finished, or holds something else.
        FormatError: it is damaged, or of a newer version.
        ValueError: a wrong argument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        crop: Crop | None = None,
        flips: float | Sequence[float] = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        self._arrays = StoreArrays(path)
        masked = self._arrays.store.manifest.section("masks") is not None
        self._masks = StoreArrays(path, mask=True) if masked else None
        self.crop, self.flips = self._checked_view(crop, flips)
        self.ignore_index = self._checked_class(ignore_index)

    def _checked_view(self, crop: Crop | None, flips: float | Sequence[float]) -> tuple[Crop | None, tuple[float, ...]]:
        axes = self._arrays.axes
        if crop is not None:
            if not isinstance(crop, Crop) or not crop.any_axes:
                raise TypeError(f"crop is {crop!r}, but must be RandomCrop, CenterCrop or None")
            crop.sides(axes)
        chances = (float(flips),) * axes if isinstance(flips, int | float) else tuple(map(float, flips))
        if len(chances) != axes or not all(0 <= chance <= 1 for chance in chances):
            raise ValueError(f"flips is {flips}, but must be a probability from 0 to 1, or one for each of {axes} axes")
        return crop, chances

    def _checked_class(self, ignore_index: int | None) -> int:
        if self._masks is None:
            if ignore_index is not None:
                raise ValueError(f"ignore_index is {ignore_index}, but the store has no masks; prepare it with --masks FOLDER")
            return 255
        return class_outside(ignore_index, self._masks.dtype, self.class_voxels, ())

    @property
    def large_targets(self) -> bool:
        return self._masks is not None

    @property
    def _all(self) -> StoreArrays:
        return self._arrays

    @property
    def class_voxels(self) -> dict[int, int]:
        masks = self._arrays.store.manifest.section("masks")
        return by_class(masks.pixels) if masks else {}

    def _class_counts(self) -> tuple[dict[int, int], int]:
        if self._masks is None:
            return super()._class_counts()
        return {k: count for k, count in self.class_voxels.items() if k != self.ignore_index}, 0

    @property
    def _draws(self) -> int:
        """Random numbers a sample needs: for flips, then for the crop."""
        return 2 * self._arrays.axes

    def _boxes(self, rows: Array, u: Array) -> Boxes:
        """Where boxes begin and how long their sides are, int64 [n, axes], and which axes are mirrored, bool [n, axes]."""
        shapes, axes = self._arrays.sides[rows], self._arrays.axes
        starts, sides = np.zeros_like(shapes), shapes
        if self.crop is not None:
            starts = self.crop.starts(u[axes:], shapes)
            sides = np.broadcast_to(self.crop.sides(axes), shapes.shape)
        return starts, sides, u[:axes].T < self.flips

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        rows = self.rows(checked(index, len(self)))[None]
        u = torch.rand(self._draws, 1, dtype=torch.float64, device="cpu").numpy()
        boxes = self._boxes(rows, u)
        values = torch.from_numpy(_read(self._arrays, rows, boxes, 0, np.empty)[0])
        if self._masks is not None:
            return values, torch.from_numpy(_read(self._masks, rows, boxes, self.ignore_index, np.empty)[0])
        target = self._arrays.targets[rows[0]]
        return values, int(target) if target.ndim == 0 else torch.from_numpy(np.array(target))

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
        """A batch as the Loader takes it: arrays [n, ...], and masks [n, ...] or targets, int64 [n] or float32 [n, columns]."""
        started = perf_counter()
        keys = repeated(self._keys(indices), repeats)
        rows = keys & ROW_MASK
        boxes = self._boxes(rows, uniforms(seed, epoch, keys, self._draws))
        values = _read(self._arrays, rows, boxes, 0, allocate)
        targets = self._arrays.targets[rows]
        if self._masks is not None:
            targets = _read(self._masks, rows, boxes, self.ignore_index, allocate)
        if timing is not None:
            timing.read_s += perf_counter() - started
        return values, targets

    def sample_bytes(self) -> int:
        """Bytes of the largest sample, its mask included."""
        rows, arrays = self.rows(np.arange(len(self))), self._arrays
        channels = arrays.channels[rows] if arrays.channels is not None else np.ones(len(rows), np.int64)
        size = arrays.sides[rows].prod(axis=1) if self.crop is None else math.prod(self.crop.sides(arrays.axes))
        cell = channels * arrays.dtype.itemsize + (0 if self._masks is None else self._masks.dtype.itemsize)
        return int((cell * size).max())

    def with_size(self, size: int | None) -> Any:
        if size is not None:
            raise StoreError(f"{self._arrays.store.path} has no size {size}: arrays are stored in their own")
        return self

    def with_crop(self, crop: Crop | None, *, flips: float | Sequence[float] = 0.0) -> Any:
        """The same samples with another crop and other flips: what a validation set needs after `split`."""
        crop, flips = self._checked_view(crop, flips)
        return self._like(crop=crop, flips=flips)

    def __repr__(self) -> str:
        arrays = counted_of(len(self), len(self._arrays), f"arrays of {self._arrays.axes} axes")
        classes = f"{len(self.classes)} classes" if self._arrays.labels.kind == "class" else ""
        masks = "masks" if self._masks is not None else ""
        crop = "" if self.crop is None else repr(self.crop)
        return in_one_line(self, arrays, str(self._arrays.dtype), classes, masks, crop, shown(self._arrays.store.path))


def _read(arrays: StoreArrays, rows: Array, boxes: Boxes, outside: int, allocate: Allocate) -> Array:
    """The boxes of some arrays, [n, ...]."""
    starts, sides, flips = (part.tolist() for part in boxes)
    shapes = {arrays.shape(row, side) for row, side in zip(rows.tolist(), sides, strict=True)}
    if len(shapes) != 1:
        found = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)[:4])
        raise LoaderError(
            f"a batch needs arrays of one shape, but these have {found}: give the dataset a crop, such as "
            "crop=fastdata.RandomCrop(64), and keep arrays of different channels in different stores"
        )
    out = allocate((len(rows), *shapes.pop()), arrays.dtype)
    for row, start, flip, target in zip(rows.tolist(), starts, flips, out, strict=True):
        arrays.read(row, start, flip, target, outside)
    return out
