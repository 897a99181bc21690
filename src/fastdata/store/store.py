"""The class through which everything reads a finished store; and the check of all its bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from msgspec import convert

from fastdata import kinds
from fastdata.errors import FastDataError, StoreError, damaged
from fastdata.store.files import MANIFEST, NAMES, REJECTS, SAMPLES, Stamp, check_size, check_sum, index_file, load_npy, shard_file
from fastdata.store.manifest import Variant, read_current
from fastdata.store.reader import LocalShards, RecordIndex, ShardReader
from fastdata.types import Array, StrPath


class StoreLocation(os.PathLike[str]):
    """The location of a store whose shards are elsewhere. path: the folder with all its other files."""

    def check(self, variant: Variant, shard: int) -> None:
        """Read a shard, and raise a FastDataError if it is damaged."""

    def reader(self, variant: Variant, index: RecordIndex, *, check: bool) -> ShardReader:
        """Open the records of a variant. check: as for ShardReader."""
        raise NotImplementedError


class Use(NamedTuple):
    """The shards of some samples of a store: indices of samples, int64 [n], and the shard of each, int64 [n]."""

    store: StoreLocation
    variant: str
    samples: Array
    shards: Array


class Reject(TypedDict):
    """A line of rejects.jsonl."""

    source: int
    name: str
    reason: str
    detail: str


class Store:
    """A finished store.

    Args:
        path: the folder, or a StoreLocation.
        kind: the kind of data it must hold, or None for any.
        expected: the xxh3-128 of the manifest that it had when it was opened before, or None for any.

    Attributes:
        path: the folder that its files are in, absolute.
        location: what opens it again: the folder, or the StoreLocation that was given. Its text goes into messages.
        samples: one row for each sample (docs/format.md), memory-mapped read-only.
        stamp: what tells whether the store has been replaced since.

    Raises:
        StoreError: there is no finished store at `path`, or it was replaced, holds another kind, or lacks a file.
        FormatError: it has another version, or a file is cut short or damaged.
    """

    def __init__(self, path: StrPath, kind: str | None = "images", *, expected: str | None = None) -> None:
        self.location: Path | StoreLocation = path if isinstance(path, StoreLocation) else Path(path).absolute()
        while True:  # until no other store takes its place meanwhile
            self.path, self.manifest = read_current(Path(path).absolute())
            if expected not in (None, self.manifest.xxh3_128):
                raise StoreError(f"{path} was replaced while this dataset was in use; open the dataset again")
            self.stamp = Stamp(self.path / MANIFEST, self.manifest.xxh3_128)
            try:
                self._open(kind)
                return
            except StoreError:
                try:
                    self.stamp.check()
                except StoreError:
                    continue
                raise

    def _open(self, kind: str | None) -> None:
        manifest = self.manifest
        self.kind = kinds.find(manifest.kind)
        if kind not in (None, manifest.kind):
            raise StoreError(f"{self.location} holds {manifest.kind}, not {kind}; open it with fastdata.open")
        files = {self.path / name: total for name, total in manifest.files.items()}
        if not isinstance(self.location, StoreLocation):
            files |= {self.shard(variant, k): total for variant in manifest.variants for k, total in enumerate(variant.shards)}
        for path, total in files.items():
            check_size(path, total.bytes)
        check_sum(self.path / SAMPLES, manifest.files[SAMPLES])
        self.samples = load_npy(self.path / SAMPLES, self.kind.module("sections").samples_dtype(manifest), (manifest.num_samples,))
        self._indices = {variant.name: self._index(variant) for variant in manifest.variants}
        self.kind.module("sections").check(self)

    def _index(self, variant: Variant) -> RecordIndex:
        file, sizes = index_file(variant.name), [shard.bytes for shard in variant.shards]
        return RecordIndex(self.path / file, self.manifest.files[file], self.manifest.shard_records(variant), sizes, self.stamp)

    def __len__(self) -> int:
        return self.manifest.num_samples

    def field(self, variant: Variant, name: str) -> Array:
        """Return the "height" or "width" of each image of a variant."""
        return np.asarray(self.samples[f"{variant.of}/{name}"])

    def variant(self, size: int | None = None, *, mask: bool = False, image: str = "") -> Variant:
        """Return the variant of images, or of masks, with this size, or the largest. image: its name, if there are several."""
        images = self.manifest.images
        if image and image not in images:
            has = f"has the images {', '.join(images)}" if images else "has one image for each sample, without a name"
            raise StoreError(f"{self.location} has no image {image!r}: it {has}")
        image = "" if image in images[:1] else image
        variants = {v.size: v for v in self.manifest.variants if (v.is_mask, v.image) == (mask, image)}
        if not variants:
            raise StoreError(f"{self.location} has no masks; prepare it with --masks FOLDER")
        if size is None:
            return max(variants.values(), key=lambda v: float("inf") if v.size is None else v.size)
        if size not in variants:
            found = ", ".join("the images' own sizes" if one is None else str(one) for one in variants)
            raise StoreError(f"{self.location} has no size {size}; it has {found}")
        return variants[size]

    def shards_of(self, rows: Array) -> Array:
        """Return the shard that each row lies in, int64."""
        return np.searchsorted(np.cumsum(self.manifest.shard_samples), rows, "right")

    def uses(self, variant: Variant, rows: Array, in_memory: int = 0) -> list[Use]:
        """Return the remote shards of samples, except those of the store's first `in_memory` samples."""
        samples = np.flatnonzero(rows >= in_memory)
        if not isinstance(self.location, StoreLocation) or not len(samples):
            return []
        return [Use(self.location, variant.name, samples, self.shards_of(rows[samples]))]

    def index(self, variant: Variant) -> RecordIndex:
        """Return where the records of a variant lie."""
        return self._indices[variant.name]

    def reader(self, variant: Variant, *, check: bool = False) -> ShardReader:
        """Open the records of a variant. check: as for ShardReader."""
        index = self.index(variant)
        if isinstance(self.location, StoreLocation):
            return self.location.reader(variant, index, check=check)
        paths, sizes = [self.shard(variant, k) for k in range(len(variant.shards))], [shard.bytes for shard in variant.shards]
        return ShardReader(index, LocalShards(paths, sizes, f"run fastdata verify {self.location}", self.stamp), check=check)

    def shard(self, variant: Variant, number: int) -> Path:
        """Return the path of a shard."""
        return self.path / shard_file(variant.name, number)

    def identity(self, variant: Variant) -> str:
        """Return a key that is equal for variants of equal records: their form, counts and checksums."""
        sums = [s.xxh3_128 for s in variant.shards]
        return repr((variant.form, self.manifest.shard_records(variant), sums))

    def names(self) -> list[str]:
        """Return the source name of each sample; for tokens, of each input. Names are decoded as file names (surrogateescape)."""
        count = len(self) if self.kind.named else None
        return self._lines(NAMES, str, count)

    def rejects(self) -> list[dict[str, Any]]:
        """Return the inputs that were rejected."""
        return self._lines(REJECTS, Reject, self.manifest.num_rejects)

    def _lines(self, name: str, kind: Any, count: int | None) -> list[Any]:
        check_sum(self.path / name, self.manifest.files[name])
        try:
            with (self.path / name).open("rb") as file:
                lines: list[Any] = convert([json.loads(line) for line in file], list[kind])
            if len(lines) != (len(lines) if count is None else count):
                raise ValueError(f"it has {len(lines)} lines, but the manifest says {count}")
        except (ValueError, RecursionError) as error:
            raise damaged(self.path / name, error) from None
        return lines


class StoreSamples:
    """The samples of a store: their labels, names and shards. targets: int64 [n], or float32 [n, columns]."""

    def __init__(self, store: Store) -> None:
        self.store, self.stores, self.labels = store, {store.path: store}, store.manifest.labels
        self.targets: Array = np.array(store.samples["label"], np.float32 if self.labels.kind == "vector" else np.int64)

    def __len__(self) -> int:
        return len(self.store)

    @cached_property
    def _names(self) -> list[str]:
        return self.store.names()

    def name(self, index: int) -> str:
        return self._names[index]

    def shards_of(self, rows: Array) -> Array:
        """Return the shard that each row lies in, int64."""
        return self.store.shards_of(rows)


def verify(path: StrPath, *, tick: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """Check a store: a folder or a StoreLocation. Yield a line for each file whose bytes are not those written.

    tick: called with the size in bytes of each shard that is done.
    """
    try:
        root, manifest = read_current(Path(path))
    except FastDataError as error:
        yield str(error)
        return
    remote = path if isinstance(path, StoreLocation) else None  # whose tables were compared with their checksums when they came
    for name, total in manifest.files.items() if remote is None else ():
        yield from _problems(check_sum, root / name, total)
    for variant in manifest.variants:
        for shard, total in enumerate(variant.shards):
            local = (check_sum, root / shard_file(variant.name, shard), total)
            yield from _problems(*local if remote is None else (remote.check, variant, shard))
            tick(total.bytes)


def _problems(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Yield the problem that a check raises."""
    try:
        check(*arguments)
    except FastDataError as error:
        yield str(error)
