"""The parts of a manifest and of samples.npy that are about images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.images.named import NamedImage
from fastdata.store.format import PIXELS, Labels, entry, sample_columns

__all__ = ["Masks", "join_masks", "parse_masks", "parse_stored_images", "samples_dtype"]


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
    pixels = {k: entry(n, int) for k, n in entry(found["pixels"], dict).items()}
    for k in pixels:
        if not (k.isascii() and k.isdigit()):
            raise ValueError(f"found {k!r:.80}, expected the number of a class")
    return Masks(names, pixels)


def parse_stored_images(options: dict[str, Any]) -> list[NamedImage]:
    """Parse how each of several images is stored, which the options say; []: samples have one image."""
    return [
        NamedImage(entry(one["name"], str), entry(one["codec"], str), entry(one["bits"], int), entry(one["gray"], bool))
        for one in entry(options.get("images", []), list)
    ]


def join_masks(found: Sequence[Masks | None]) -> Masks | None:
    """Join the sections of several stores. Raise ValueError if their classes have different names."""
    sections = [masks for masks in found if masks is not None]
    if not sections:
        return None
    names = {masks.names for masks in sections}
    if len(names) > 1 or len(sections) < len(found):
        listed = " and ".join(", ".join(one) or "no names" for one in sorted(names))
        raise ValueError(f"their masks have the classes {listed}: prepare them with the same --palette")
    pixels = sum((Counter(masks.pixels) for masks in sections), Counter[str]())
    return Masks(names.pop(), {name: pixels[name] for name in sorted(pixels, key=int)})


def samples_dtype(labels: Labels, variants: Iterable[str]) -> np.dtype[Any]:
    """Return the dtype of samples.npy: a label, and sides, bytes and checksum of each variant."""
    return sample_columns(labels, variants, [], PIXELS)
