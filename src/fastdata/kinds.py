"""What a kind of data is, and where the kinds are: images, tokens, arrays and tables.

The rooms that serve every kind (`sources`, `store`, `prepare`, `data`) ask here, and import no kind. A kind is an object called
KIND in a module of its own, which is imported when it is first needed. A kind from elsewhere calls `register`, or names its module
in the entry points "fastdata.kinds".
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

__all__ = ["OURS", "Kind", "Planned", "Probed", "Tables", "find", "home", "names", "register"]

Array = Any  # of numpy, which takes longer to import than `--help` may take
StrPath = str | os.PathLike[str]

_HOMES = {
    "images": "fastdata.images.kind",
    "arrays": "fastdata.arrays.kind",
    "tokens": "fastdata.text.kind",
    "table": "fastdata.tables.kind",
}
OURS = tuple(_HOMES)


@dataclass(frozen=True)
class Planned:
    """What a kind makes of a source: a plan, and what the caller shall know.

    Attributes:
        plan: a `fastdata.prepare.plan.Plan`.
        skipped: files that by their ending are none of these, by ending.
        notes: what of the source is not stored, or otherwise than asked.
        beside: the folder of what lies beside the inputs, such as masks; None: that of the inputs.
    """

    plan: Any
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beside: Path | None = None


@dataclass(frozen=True)
class Tables:
    """What a store says of itself, made of the tables of all its shards.

    Attributes:
        samples: the rows of samples.npy; None: the store has no such file.
        names: the lines of names.txt; None: the store has no such file.
        counts: samples of each shard.
        records: of each shard, where these are not its samples.
        sections: what the manifest holds for this kind.
        originals: of variants of codec "original", how many records are the bytes of their inputs.
        notes: what the caller shall know of what was made.
    """

    samples: Array | None
    names: Iterable[str] | None
    counts: tuple[int, ...]
    records: tuple[int, ...] | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probed:
    """What some inputs became.

    Attributes:
        inputs: how many there are in all.
        tried: how many were tried.
        scale: by what to multiply.
        records: sizes in bytes.
        rejected: count by reason.
    """

    inputs: int
    tried: int
    scale: float
    records: list[int]
    rejected: Counter[str]


class Kind(Protocol):
    """Answers for one kind of data. What has a body here is what most kinds do.

    Methods that prepare import no torch.

    Attributes:
        name: as manifests have it.
        says: what the data are, in messages: "a table".
        item: what one sample is called: "image", "document".
        reader: the dataset that opens a store, by its public name.
        adopts: what in Python may be a source: "a DataFrame".
        read: what a file, and what files are read as.
        held_by: the dataset that holds one in memory.
        options: the dataclass of what `fastdata-prep` can be asked for.
        shards: the module with the functions `make_shard`, `kept`, `tables` and `probe`, loaded when one is needed.
        files: besides rejects.jsonl, those that every store has.
        labels: kinds of labels that a store may have.
        exports: formats that `fastdata export` writes, the default first.
        export_options: options of `fastdata export`, each with the format that it goes with.
        drawn: what a contact sheet shows: "samples".
        checksums: whether each sample's records have a checksum in samples.npy.
        named: whether names.txt has a line for each sample.
        variants: a regular expression for the names of variants; empty: the name of the kind.
        extra_files: that some stores have, such as a tokenizer.
        untyped: options in a manifest that nobody types: they follow from others, or from the files.
        hint: what to do instead, where options of this kind were given for another.
    """

    name: str
    says: str
    item: str
    reader: str
    adopts: str = ""
    read: tuple[str, str] = ("an input", "inputs")
    held_by: str = "RAMDataset"
    options: type[Any]
    shards: str = ""
    files: tuple[str, ...] = ("samples.npy", "names.txt")
    labels: tuple[str, ...] = ("class", "vector", "none")
    exports: tuple[str, ...] = ()
    export_options: Mapping[str, str] = {}
    drawn: str = "samples"
    checksums: bool = False
    named: bool = True
    variants: str = ""
    extra_files: tuple[str, ...] = ()
    untyped: tuple[str, ...] = ()
    hint: str = ""

    # Preparing

    def claims(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Whether the source, or an option that was given, says that this kind is meant."""
        return False

    def suggest(self, source: StrPath) -> list[str]:
        """Name what may be meant as SOURCE, where this kind's options were given with another."""
        return []

    def adopt(self, source: Any, labels: Any) -> AbstractContextManager[tuple[StrPath, Any]] | None:
        """Put a source that is no path into a file for as long as the context lasts, which gives its path, and the labels that are
        not in it. Return None if it is not of this kind."""
        return None

    def plan(self, source: StrPath, out: Path, options: Any, limit: int | None) -> Planned:
        """List the inputs and decide what becomes of them.

        Args:
            source: where they are.
            out: the store to make.
            options: of the class `self.options`.
            limit: how many of them to take; None: all.
        """

    def make_shard(self, job: Any, task: Any, writers: Any, progress: Any) -> dict[str, Any]:
        """Fill a shard's files, in a worker, and return a table of plain JSON values with a list "rejects"."""
        return importlib.import_module(self.shards).make_shard(job, task, writers, progress)  # type: ignore[no-any-return]

    def kept(self, table: dict[str, Any]) -> int:
        """Count the samples of a shard's table."""
        return importlib.import_module(self.shards).kept(table)  # type: ignore[no-any-return]

    def tables(self, plan: Any, found: list[dict[str, Any]]) -> Tables:
        """Make of the tables of all shards, in order, what the store says of itself."""
        return importlib.import_module(self.shards).tables(plan, found)  # type: ignore[no-any-return]

    def probe(self, plan: Any, roots: tuple[Path, Path]) -> Probed:
        """Prepare some inputs and keep nothing."""
        return importlib.import_module(self.shards).probe(plan, roots)  # type: ignore[no-any-return]

    def sizes(self, store: Any, sources: tuple[Any, ...]) -> tuple[int, int]:
        """Return the bytes of what was kept, before and after."""
        before = sum(sources[k].size for k in store.samples["source"].tolist())
        return before, sum(int(store.samples[f"{v.name}/bytes"].sum()) for v in store.manifest.variants)

    def notes(self, store: Any) -> Iterator[str]:
        """Yield what the caller shall know of a finished store."""
        return iter(())

    def typed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Turn a manifest's options into those that are typed."""
        return {key.replace("_", "-"): value for key, value in options.items()}

    def differences(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        """Yield lines on two manifests' options that differ in what nobody types."""
        return iter(())

    # What a store holds

    def form(self, codec: str, channels: int, dtype: str, *, mask: bool) -> Any:
        """Describe the records of a variant, or of one that holds masks; None: this version can't read such."""

    def sections(self, body: dict[str, Any], variants: tuple[Any, ...]) -> dict[str, Any]:
        """Read the manifest's sections of this kind. Raise ValueError, KeyError or TypeError where they are damaged."""
        return {}

    def samples_dtype(self, labels: Any, variants: Iterable[str]) -> Any:
        """Return the dtype of a row of samples.npy."""

    def records(self, store: Any, rows: range) -> Iterator[range]:
        """Yield the places in their shard of each sample's records, in order."""
        return (range(k, k + 1) for k in range(len(rows)))

    def described(self, manifest: Any) -> str:
        """Say what a store holds, as in "images with masks"."""
        return self.says

    # What is told of a store

    def classes(self, store: Any) -> Array:
        """Return the class of each sample."""
        return store.samples["label"]

    def facts(self, store: Any) -> dict[str, Any]:
        """Return what `info` tells of this kind alone."""
        return {}

    def variant_facts(self, store: Any, variant: Any) -> dict[str, Any]:
        """Return what `info` tells of a variant of this kind."""
        return {}

    def memory(self, store: Any) -> Iterator[dict[str, Any]]:
        """Yield what a RAMDataset of each size holds: "size" and "bytes"."""
        yield {"size": None, "bytes": sum(shard.bytes for shard in store.manifest.variants[0].shards)}

    def lines(self, facts: dict[str, Any]) -> Iterator[str]:
        """Yield the first lines of `info`, for people."""
        yield f"{facts['path']}: {facts['samples']} samples, format {facts['format']}"

    def sheet(self, store: Any, size: int | None) -> tuple[Any, int, str] | None:
        """Draw a contact sheet: a Canvas, how many things it shows, and the line below the store's name; None: there is none."""
        return None

    def export(self, store: Any, root: Path, to: str, size: int | None, tick: Callable[[int], None], options: Any) -> int:
        """Write ordinary files into an empty folder and return how many samples, or files."""

    # Reading it

    def dataset(self, manifest: Any) -> Any:
        """Return the class of the dataset that `fastdata.open` makes."""

    def in_memory(self) -> Any:
        """Return the class that `RAMDataset` makes; None: there is none."""
        return None


def register(name: str, module: str) -> None:
    """Add a kind. `module` is imported when the kind is needed, and has to have an object KIND."""
    _HOMES[name] = module


def names() -> list[str]:
    """Return the names of all kinds, those of other packages included."""
    _look_around()
    return [*_HOMES]


def find(name: str) -> Kind:
    """Return the kind of this name.

    Raises:
        KeyError: there is none.
    """
    if name not in _HOMES:
        _look_around()
    return importlib.import_module(_HOMES[name]).KIND  # type: ignore[no-any-return]


def home(name: str) -> str:
    """Return the module of a kind, for another process to register."""
    return _HOMES[name]


@cache
def _look_around() -> None:
    """Add what other packages offer, once."""
    from importlib.metadata import entry_points

    for point in entry_points(group="fastdata.kinds"):
        _HOMES.setdefault(point.name, point.value)
