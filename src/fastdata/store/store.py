"""Store: a finished store, opened. Everything that reads one goes through here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import FormatError, StoreError
from fastdata.store.files import NAMES, REJECTS, SAMPLES
from fastdata.store.format import Manifest, Variant, read_manifest
from fastdata.store.shards import ShardReader, check_size

__all__ = ["Store"]

Array = np.ndarray[Any, np.dtype[Any]]


class Store:
    """A finished store.

    Args:
        path: the folder.
        kind: what it has to hold; None: anything.

    Attributes:
        path: the folder.
        manifest: what is in it and how it was made.
        kind: of data, which answers for what is particular to it.
        samples: the table of samples, one row each (docs/format.md), mapped from disk, read-only; of a table, empty.

    Raises:
        StoreError: there is no finished store at `path`, or it holds something else.
        FormatError: its version is newer, or a file is missing, cut short or damaged.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str | None = "images") -> None:
        self.path = Path(path).absolute()
        self.manifest: Manifest = read_manifest(self.path)
        self.kind = kinds.find(self.manifest.kind)
        if kind not in (None, self.manifest.kind):
            found = self.manifest.kind
            raise StoreError(f"{self.path} holds {found}, not {kind}; open it with {self.kind.reader}")
        self._check_sizes()
        self.samples: Array = self._load_samples() if SAMPLES in self.manifest.files else np.empty(0)

    def _check_sizes(self) -> None:
        for name, total in self.manifest.files.items():
            check_size(self.path / name, total.bytes)
        for variant in self.manifest.variants:
            for shard, total in enumerate(variant.shards):
                check_size(self.manifest.shard_path(self.path, variant, shard), total.bytes)

    def _load_samples(self) -> Array:
        want = self.kind.samples_dtype(self.manifest.labels, [v.name for v in self.manifest.variants])
        try:
            samples: Array = np.load(self.path / SAMPLES, mmap_mode="r" if self.manifest.num_samples else None, allow_pickle=False)
        except Exception as error:  # noqa: BLE001  numpy evaluates the header: whatever that throws at damaged bytes
            raise FormatError(f"{self.path / SAMPLES} is damaged: {error}") from None
        if not isinstance(samples, np.ndarray):
            raise FormatError(f"{self.path / SAMPLES} is not an array of numpy's")
        if samples.dtype != want or samples.shape != (self.manifest.num_samples,):
            raise FormatError(
                f"{self.path / SAMPLES} holds {samples.shape} {samples.dtype}, the manifest says {len(self)} x {want}"
            )
        return samples

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __repr__(self) -> str:
        sizes = ", ".join(v.name for v in self.manifest.variants)
        return f"Store({str(self.path)!r}: {len(self)} samples, variants {sizes})"

    def variant(self, size: int | None = None, *, mask: bool = False) -> Variant:
        """The stored variant of a size, of the images or of their masks; None: the largest."""
        variants = [v for v in self.manifest.variants if v.is_mask == mask]
        if not variants:
            raise StoreError(f"{self.path} has no masks; prepare it with --masks FOLDER")
        if size is None:
            return max(variants, key=lambda v: float("inf") if v.size is None else v.size)
        for variant in variants:
            if variant.size == size:
                return variant
        found = ", ".join("the images' own" if v.size is None else str(v.size) for v in variants)
        raise StoreError(f"{self.path} has no size {size}; it has {found}")

    def reader(self, variant: Variant) -> ShardReader:
        """Access to the records of a variant."""
        paths = [self.manifest.shard_path(self.path, variant, k) for k in range(len(variant.shards))]
        return ShardReader(paths, self.manifest.shard_records(variant), [s.bytes for s in variant.shards])

    def names(self) -> list[str]:
        """The source name of each sample; of tokens, of each input. Bytes that are not UTF-8 are kept as Python does for file
        names (surrogateescape)."""
        names = self._lines(NAMES, str)
        if len(names) != len(self) and self.kind.named:
            raise FormatError(f"{self.path / NAMES} has {len(names)} names, the manifest says {len(self)}")
        return names

    def rejects(self) -> list[dict[str, Any]]:
        """Every input that was left out: {"source", "name", "reason", "detail"}."""
        found = self._lines(REJECTS, dict)
        kinds = {"source": int, "name": str, "reason": str, "detail": str}
        if any(type(reject.get(key)) is not kind for reject in found for key, kind in kinds.items()):
            raise FormatError(f"{self.path / REJECTS} is damaged: a line lacks one of {', '.join(kinds)}")
        return found

    def _lines(self, name: str, kind: type) -> list[Any]:
        try:
            with (self.path / name).open("rb") as file:
                found = [json.loads(line) for line in file]
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self.path / name} is damaged: {error}") from None
        if not all(type(line) is kind for line in found):
            raise FormatError(f"{self.path / name} is damaged: a line is not a {kind.__name__}")
        return found
