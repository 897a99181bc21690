"""The description of arrays in a manifest and in samples.npy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.errors import FormatError
from fastdata.images.sections import Masks, join_masks
from fastdata.store.columns import NUMBERS
from fastdata.store.files import SAMPLES, Count, Entry
from fastdata.store.manifest import MASK, Form, Variant, sample_columns
from fastdata.store.store import Store
from fastdata.types import Array

Shape = tuple[int, ...]
Box = tuple[slice, ...]

MAX_AXES = 5  # without channels


class Arrays(Entry, frozen=True):
    """The section of a store of arrays. chunk: sides of the chunks. channels: whether there is an axis of channels, which comes
    first."""

    chunk: tuple[Count, ...]
    channels: bool

    def __post_init__(self) -> None:
        if not 1 <= len(self.chunk) <= MAX_AXES or not all(self.chunk):
            raise ValueError(f"chunks cannot have the sides {self.chunk}")

    @property
    def dims(self) -> int:
        return len(self.chunk) + self.channels


TYPES = {"arrays": Arrays, "masks": Masks | None}


def reads(form: Form, *, mask: bool) -> bool:
    """Return whether this version reads chunks of arrays, or of masks, of this form."""
    types, channels = (("uint8", "uint16"), (1,)) if mask else (NUMBERS, (1, 3))
    return form.codec == "chunks" and form.dtype in types and form.channels in channels


def merge(stores: Sequence[Store], samples: Sequence[Array]) -> dict[str, Any]:
    """Number the chunks of all stores consecutively, and add up the voxels of each mask class."""
    first = 0
    for store, rows in zip(stores, samples, strict=True):
        rows["first"] += first
        first += sum(store.manifest.variants[0].records or ())
    masks = join_masks([store.manifest.section("masks") for store in stores])
    return {"arrays": stores[0].manifest.section("arrays"), "masks": masks}


def samples_dtype(of: Any) -> np.dtype[Any]:
    """Return the dtype of samples.npy's rows (label, sides with channels first, first record) of a manifest or plan."""
    return sample_columns(of.labels, [("shape", "<u4", (MAX_AXES + 1,)), ("first", "<u8")])


def check(store: Store) -> None:
    """Check that shapes fit the records and bytes of each array, since shapes determine what is allocated and read.

    Raises:
        FormatError: they do not fit.
    """
    samples, manifest = store.samples, store.manifest
    names = [variant.name for variant in manifest.variants]
    if names not in (["array"], ["array", f"{MASK}array"]) or any(variant.records is None for variant in manifest.variants):
        raise FormatError(f"{store.path} has variants {', '.join(names)}, which are wrong for arrays; prepare it again")
    arrays: Arrays = manifest.section("arrays")
    sides = samples["shape"].astype(np.float64)  # exact below 2^53, and does not overflow
    chunks = np.ceil(sides[:, arrays.channels : arrays.dims] / arrays.chunk).prod(axis=1)
    ends = np.append(0, np.cumsum(chunks))
    of_shards = ends[np.append(0, np.cumsum(manifest.shard_samples)).astype(np.int64)]
    fits = not sides[:, arrays.dims :].any() and np.array_equal(samples["first"], ends[:-1])
    for variant in manifest.variants:
        values = sides[:, arrays.channels and variant.is_mask : arrays.dims].prod(axis=1)
        fits = fits and np.array_equal(np.diff(of_shards), manifest.shard_records(variant))
        fits = fits and np.array_equal(_array_bytes(store, variant), values * np.dtype(variant.form.dtype).itemsize)
    if not fits:
        raise FormatError(
            f"{store.path / SAMPLES} has shapes that do not fit the chunks of the store; copy it again, or prepare the store again"
        )


def _array_bytes(store: Store, variant: Variant) -> Array:
    """Return the bytes of all records of each array, int64 [n]."""
    ends = np.append(0, np.cumsum(store.index(variant).lengths))
    return np.diff(ends[np.append(store.samples["first"], len(ends) - 1).astype(np.int64)])


def touched(shape: Shape, chunk: Shape, start: Shape, stop: Shape) -> Iterator[tuple[int, Shape, Box, Box]]:
    """Yield the chunks that a box from `start` to `stop`, inside the array, touches. Channels are left out: they are never cut.

    Each is a tuple: the number among the array's chunks, the shape, the part that is wanted, and where it goes, from `start`.
    """
    axes: list[list[tuple[int, int, slice, slice]]] = []
    stride = 1
    for side, step, low, high in reversed(list(zip(shape, chunk, start, stop, strict=True))):
        parts = []
        for k in range(low // step, -(-high // step)) if low < high else ():
            first, length = k * step, min(step, side - k * step)
            a, b = max(low, first), min(high, first + length)
            parts.append((k * stride, length, slice(a - first, b - first), slice(a - low, b - low)))
        axes.append(parts)
        stride *= -(-side // step)
    for part in itertools.product(*reversed(axes)):
        places, lengths, wanted, target = zip(*part, strict=True)
        yield sum(places), lengths, wanted, target
