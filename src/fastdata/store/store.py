"""The class through which everything reads a finished store."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import FormatError, StoreError, damaged
from fastdata.store.checked import CheckedRecords
from fastdata.store.files import (
    IMAGES,
    MANIFEST,
    NAMES,
    REJECTS,
    SAMPLES,
    Stamp,
    file_sum,
    open_regular,
    shard_file,
)
from fastdata.store.format import Manifest, Variant, read_current, variant_columns
from fastdata.store.place import Place, Records
from fastdata.store.shards import ShardReader, check_size
from fastdata.store.uses import Use

__all__ = ["Store"]

Array = np.ndarray[Any, np.dtype[Any]]


class Store:
    """A finished store.

    Args:
        path: the folder, or a Place.
        kind: the kind of data it must hold; None: any.
        expected: the xxh3-128 of the manifest that it had when it was opened before; None: any.
        check: "first": compare each record with its checksum when it is first read; None: do not.

    Attributes:
        path: the folder that its files are in, absolute.
        place: what opens it again: the folder, or the Place that was given. Its text goes into messages.
        manifest: what it contains and how it was made.
        kind: its kind of data.
        samples: one row for each sample (docs/format.md), memory-mapped read-only. `field` reads what it says of
            the variants.
        stamp: what tells whether the store has been replaced since.

    Raises:
        StoreError: there is no finished store at `path`, or it was replaced, or it holds another kind.
        FormatError: its version is newer, or a file is missing, cut short or damaged.
        ValueError: check has another value, or its records have no checksums of their own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str | None = "images",
        *,
        expected: str | None = None,
        check: str | None = None,
    ) -> None:
        self.path: Path
        self.manifest: Manifest
        while True:  # until no other store takes its place meanwhile
            self.path, self.manifest = read_current(Path(path).absolute())
            if expected not in (None, self.manifest.xxh3_128):
                raise StoreError(f"{path} was replaced while this dataset was in use; make the dataset again")
            self.stamp = Stamp(self.path / MANIFEST, self.manifest.xxh3_128)
            try:
                self._open(path, kind, check)
            except StoreError:
                if self._is_same():
                    raise
            else:
                return

    def _is_same(self) -> bool:
        """Return whether the manifest is the one that was read, so that no other store has been put in its place."""
        try:
            self.stamp.check()
        except StoreError:
            return False
        return True

    def _open(self, path: str | os.PathLike[str], kind: str | None, check: str | None) -> None:
        self.place: Path | Place = path if isinstance(path, Place) else Path(path).absolute()
        self.kind = kinds.find(self.manifest.kind)
        if kind not in (None, self.manifest.kind):
            found = self.manifest.kind
            raise StoreError(f"{self.place} holds {found}, not {kind}; open it with {self.kind.reader}")
        self.check = self._checked(check)
        self._check_sizes()
        first = [v.name for v in self.manifest.variants if not v.image]
        others = [v.name for v in self.manifest.variants if v.image]
        self.samples: Array = self._load(SAMPLES, self.kind.samples_dtype(self.manifest.labels, first))
        self._others = self._load(IMAGES, np.dtype(variant_columns(others))) if others else self.samples
        self.kind.check(self)

    def _checked(self, check: str | None) -> str | None:
        if check not in (None, "first"):
            raise ValueError(f"check is {check!r}, but must be 'first' or None")
        if check and not all(map(self.one_each, self.manifest.variants)):
            raise ValueError(f"check is {check!r}, but records of {self.manifest.kind} have no checksums: use fastdata verify")
        return check

    def one_each(self, variant: Variant) -> bool:
        """Return whether each sample is one record, whose length and checksum the tables have."""
        return self.kind.checksums and self.manifest.shard_records(variant) == self.manifest.shard_samples

    def _check_sizes(self) -> None:
        for name, total in self.manifest.files.items():
            check_size(self.path / name, total.bytes)
        for variant in () if isinstance(self.place, Place) else self.manifest.variants:
            for shard, total in enumerate(variant.shards):
                check_size(self.shard(variant, shard), total.bytes)

    def _load(self, file: str, want: np.dtype[Any]) -> Array:
        """Return a table with a row for each sample."""
        self._check_sum(file)
        try:
            samples: Array = np.lib.format.open_memmap(self.path / file, mode="r")  # refuses objects, which would run code
        except Exception as error:  # noqa: BLE001  numpy evaluates the header, so damaged bytes may raise anything
            raise damaged(self.path / file, error) from None
        if samples.dtype != want or samples.shape != (self.manifest.num_samples,):
            raise FormatError(f"{self.path / file} holds {samples.shape} {samples.dtype}, the manifest says {len(self)} x {want}")
        return samples

    def _check_sum(self, file: str) -> None:
        """Compare a file with its checksum."""
        if file_sum(self.path / file) != self.manifest.files[file]:
            raise FormatError(
                f"{self.path / file} is not what was written: its checksum differs; copy it again, or prepare the store again"
            )

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __repr__(self) -> str:
        sizes = ", ".join(v.name for v in self.manifest.variants)
        return f"Store({str(self.path)!r}: {len(self)} samples, variants {sizes})"

    def field(self, variant: Variant, name: str) -> Array:
        """Return what the tables say of each record of a variant: "height", "width", "bytes" or "xxh3"."""
        table: Array = self._others if variant.image else self.samples
        found: Array = np.asarray(table)[f"{variant.name}/{name}"]  # indexing a memmap takes longer
        return found

    def variant(self, size: int | None = None, *, mask: bool = False, image: str = "") -> Variant:
        """Return the variant of images, or of masks, with this size; None: the largest.

        image: the name of an image, if samples have several; empty: the first.

        Raises:
            StoreError: there is no such size, or there are no masks, or no image of this name.
        """
        images = self.manifest.images
        if image and image not in images:
            has = f"has the images {', '.join(images)}" if images else "has one image for each sample, which has no name"
            raise StoreError(f"{self.place} has no image {image!r}: it {has}")
        image = "" if image in images[:1] else image
        variants = [v for v in self.manifest.variants if (v.is_mask, v.image) == (mask, image)]
        if not variants:
            raise StoreError(f"{self.place} has no masks; prepare it with --masks FOLDER")
        if size is None:
            return max(variants, key=lambda v: float("inf") if v.size is None else v.size)
        for variant in variants:
            if variant.size == size:
                return variant
        found = ", ".join("the images' own" if v.size is None else str(v.size) for v in variants)
        raise StoreError(f"{self.place} has no size {size}; it has {found}")

    def shards_of(self, rows: Array) -> Array:
        """Return the shard that each row lies in, int64."""
        return np.searchsorted(np.cumsum(self.manifest.shard_samples), rows, "right")

    def uses(self, variant: Variant, rows: Array, held: int = 0) -> list[Use]:
        """Return which shards of a variant samples lie in, if the store is remote. held: the first samples, which are in memory."""
        samples = np.flatnonzero(rows >= held)
        if not isinstance(self.place, Place) or not len(samples):
            return []
        return [Use(self.place, variant.name, samples, self.shards_of(rows[samples]))]

    def reader(self, variant: Variant) -> Records:
        """Open the records of a variant."""
        reader: Records
        if isinstance(self.place, Place):
            reader = self.place.reader(self.manifest, variant)
        else:
            paths, sizes = [self.shard(variant, k) for k in range(len(variant.shards))], [s.bytes for s in variant.shards]
            records = self.manifest.shard_records(variant)
            reader = ShardReader(paths, records, sizes, self.kind.record_bytes(self, variant), self.stamp)
        return reader if self.check is None else CheckedRecords(reader, self.field(variant, "xxh3"), self.place)

    def shard(self, variant: Variant, number: int) -> Path:
        """Return the path of a shard."""
        return self.path / shard_file(variant.name, number)

    def identity(self, variant: Variant) -> str:
        """Return what is equal for variants whose records are equal: their form, their counts, and the sums of their files."""
        sums = [s.xxh3_128 for s in variant.shards]
        return repr((variant.form, self.manifest.shard_records(variant), sums))

    def names(self) -> list[str]:
        """Return the source name of each sample; for tokens, of each input. They are decoded as file names (surrogateescape)."""
        names = self._lines(NAMES, str)
        if len(names) != len(self) and self.kind.named:
            raise FormatError(f"{self.path / NAMES} has {len(names)} names, the manifest says {len(self)}")
        return names

    def rejects(self) -> list[dict[str, Any]]:
        """Return the inputs that were rejected, as dicts with `source`, `name`, `reason` and `detail`."""
        rejects = self._lines(REJECTS, dict)
        types = {"source": int, "name": str, "reason": str, "detail": str}
        if any(type(reject.get(key)) is not kind for reject in rejects for key, kind in types.items()):
            raise FormatError(f"{self.path / REJECTS} is damaged: a line lacks one of {', '.join(types)}")
        return rejects

    def _lines(self, name: str, kind: type) -> list[Any]:
        self._check_sum(name)
        try:
            with open_regular(self.path / name) as file:
                lines = [json.loads(line) for line in file]
        except (ValueError, RecursionError) as error:
            raise damaged(self.path / name, error) from None
        if not all(type(line) is kind for line in lines):
            raise FormatError(f"{self.path / name} is damaged: a line is not a {kind.__name__}")
        return lines
