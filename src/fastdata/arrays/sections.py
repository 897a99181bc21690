"""The description of arrays in a manifest and in samples.npy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.arrays.chunks import MAX_AXES
from fastdata.store.format import MASK, Labels, Variant, counted, sample_columns

__all__ = ["Arrays", "parse_arrays", "samples_dtype"]


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
    """Return the dtype of a row of samples.npy: label, sides (channels first, padded with zeros), number of the first record, and
    bytes and checksum of each variant."""
    own = [("shape", "<u4", (MAX_AXES + 1,)), ("first", "<u8")]
    return sample_columns(labels, variants, own, [("bytes", "<u8"), ("xxh3", "<u8")])
