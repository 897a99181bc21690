"""The parts of a manifest and of samples.npy that are about images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.store.format import PIXELS, Labels, entry, sample_columns

__all__ = ["Masks", "parse_masks", "samples_dtype"]


@dataclass(frozen=True)
class Masks:
    """The manifest's section about masks.

    Attributes:
        names: names of the classes, if they are known.
        pixels: pixel counts by class number, before preparing.
    """

    names: tuple[str, ...]
    pixels: dict[str, int]


def parse_masks(found: Any) -> Masks | None:
    """Parse the section; None: there are no masks."""
    if found is None:
        return None
    names = tuple(entry(name, str) for name in entry(found["names"], list))
    return Masks(names, {k: entry(n, int) for k, n in entry(found["pixels"], dict).items()})


def samples_dtype(labels: Labels, variants: Iterable[str]) -> np.dtype[Any]:
    """Return the dtype of samples.npy: a label, and sides, bytes and checksum of each variant."""
    return sample_columns(labels, variants, [], PIXELS)
