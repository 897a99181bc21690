"""The parts of a manifest and of samples.npy that are about images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from fastdata.codecs import CODECS
from fastdata.errors import FormatError
from fastdata.store.files import Count, Entry
from fastdata.store.manifest import Form, Labels, Manifest, sample_columns
from fastdata.store.store import Store
from fastdata.types import Array

VOID = 255  # in public 8-bit data sets, the class of pixels that are not to be learnt


class NamedImage(Struct, frozen=True, forbid_unknown_fields=True):
    """One of several images, and how it is stored, as `ImageRecipe` says."""

    name: str
    codec: str
    bits: int
    gray: bool


class Masks(Entry, frozen=True):
    """The manifest's section about masks."""

    names: tuple[str, ...]  # of the classes, if they are known
    pixels: dict[Annotated[str, Meta(pattern=r"^[0-9]+\Z")], Count]  # by class number, before preparing

    @property
    def by_class(self) -> dict[int, int]:
        """The pixel counts, in class order."""
        return dict(sorted((int(k), count) for k, count in self.pixels.items()))

    def outside(self, ignore_index: int | None, dtype: Any) -> int:
        """Return the class of pixels outside an image: the user's `ignore_index`, or the largest that a mask of this dtype holds.

        Raise ValueError if a mask cannot hold it, or if it is the default and may also be a real class of some pixels.
        """
        largest, pixels = int(np.iinfo(dtype).max), self.by_class
        chosen = largest if ignore_index is None else ignore_index
        if not isinstance(chosen, int) or not 0 <= chosen <= largest:
            raise ValueError(f"ignore_index is {ignore_index}, but a {dtype} mask holds 0 to {largest}")
        void = chosen == VOID and len(pixels.keys() - {chosen}) > 1 and len(self.names) <= VOID
        if ignore_index is None and pixels.get(chosen) and not void:
            raise ValueError(
                f"{pixels[chosen]} mask pixels are of class {chosen}, and by default {chosen} also marks pixels outside of an "
                f"image: if a loss is to ignore both, give ignore_index={chosen}; if not, give a number that is no class"
            )
        return chosen


TYPES = {"masks": Masks | None}


def reads(form: Form, *, mask: bool) -> bool:
    """Return whether this version reads images, or masks, of this form."""
    known = form.codec in CODECS and form.channels in (1, 3) and form.dtype in ("uint8", "uint16")
    return known and (not mask or (form.codec == "rgb" and form.channels == 1))


def samples_dtype(manifest: Manifest) -> np.dtype[Any]:
    return rows_dtype(manifest.labels, [variant.name for variant in manifest.variants])


def check(store: Store) -> None:
    """Check that each image is one record."""
    if any(store.manifest.shard_records(v) != store.manifest.shard_samples for v in store.manifest.variants):
        raise FormatError(f"{store.location} does not have one record for each image; prepare it again")


def merge(stores: Sequence[Store], samples: Sequence[Array]) -> dict[str, Any]:
    """Join the counts of the classes of masks."""
    return {"masks": join_masks([store.manifest.section("masks") for store in stores])}


def join_masks(found: Sequence[Masks | None]) -> Masks | None:
    """Join the sections of several stores. Raise ValueError if their classes have different names."""
    sections = [masks for masks in found if masks is not None]
    if not sections:
        return None
    names = {masks.names for masks in sections}
    if len(names) > 1 or len(sections) < len(found):
        listed = "; ".join(", ".join(one) or "no names" for one in sorted(names))
        raise ValueError(f"classes of masks differ ({listed}): prepare all stores with --masks, and the same --palette or none")
    pixels = sum((Counter(masks.pixels) for masks in sections), Counter[str]())
    return Masks(names.pop(), {name: pixels[name] for name in sorted(pixels, key=int)})


def rows_dtype(labels: Labels, variants: Iterable[str]) -> np.dtype[Any]:
    """Return the dtype of samples.npy: a label, and the height and width of each size, which masks and further images share."""
    sizes = [name for name in variants if "-" not in name]
    return sample_columns(labels, [(f"{name}/{side}", "<u4") for name in sizes for side in ("height", "width")])
