"""The description of arrays in a manifest and in samples.npy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.arrays.chunks import MAX_AXES
from fastdata.errors import FormatError
from fastdata.store.files import SAMPLES
from fastdata.store.format import MASK, Labels, Variant, counted, sample_columns
from fastdata.store.store import Store

__all__ = ["Arrays", "check_shapes", "parse_arrays", "samples_dtype"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Arrays:
    """The section of a store of arrays. chunk: sides of the chunks. channels: whether there is an axis of channels, which comes
    first."""

    chunk: tuple[int, ...]
    channels: bool

    @property
    def dims(self) -> int:
        return len(self.chunk) + self.channels


def parse_arrays(found: Any, variants: Sequence[Variant]) -> Arrays:
    """Read the section."""
    chunk, channels = counted(found["chunk"]), found["channels"]
    if not 1 <= len(chunk) <= MAX_AXES or not all(chunk) or type(channels) is not bool:
        raise ValueError(f"chunks of {chunk}, channels {channels}")
    if [v.name for v in variants] not in (["array"], ["array", f"{MASK}array"]) or any(v.records is None for v in variants):
        raise ValueError(f"arrays in variants {[v.name for v in variants]}")
    return Arrays(chunk, channels)


def samples_dtype(labels: Labels, variants: Iterable[str]) -> np.dtype[Any]:
    """Return the dtype of a row of samples.npy: label, sides (channels first, padded with zeros), number of the first record."""
    own = [("shape", "<u4", (MAX_AXES + 1,)), ("first", "<u8")]
    return sample_columns(labels, variants, own, [])


def check_shapes(store: Store) -> None:
    """Check that shapes fit the records and bytes of each array. They say how much memory to allocate, and what to read.

    Raises:
        FormatError: they do not.
    """
    samples, manifest = store.samples, store.manifest
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
            f"{store.path / SAMPLES} has shapes that do not fit the chunks of the store; copy it again, or prepare it again"
        )


def _array_bytes(store: Store, variant: Variant) -> Array:
    """Return the bytes of all records of each array, int64 [n]."""
    ends = np.append(0, np.cumsum(store.index(variant).lengths))
    return np.diff(ends[np.append(store.samples["first"], len(ends) - 1).astype(np.int64)])
