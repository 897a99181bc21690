"""The kinds of data and their interface: images, tokens and arrays.

The packages that serve every kind (`sources`, `store`, `prepare`, `data`) look kinds up here, and import none. A kind is an object
KIND in its own module, which is imported at first use.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["NAMES", "Kind", "Planned", "Probed", "Tables", "find"]

Array = Any  # numpy's, which is not imported here: `--help` has to be fast
AnyPath = Any  # that of `fastdata.sources.urls`, also because of that
StrPath = str | os.PathLike[str]

_MODULES = {
    "images": "fastdata.images.kind",
    "arrays": "fastdata.arrays.kind",
    "tokens": "fastdata.text.kind",
}
NAMES = tuple(_MODULES)


@dataclass(frozen=True)
class Planned:
    """A kind's plan for a source, and what to tell the caller.

    Attributes:
        plan: a `fastdata.prepare.plan.Plan`.
        skipped: the number of files with another extension, by extension.
        notes: what is not stored, or not as requested.
        root: the folder that the names of the inputs are relative to; None: that of SOURCE.
        companions: the folder of each companion of an input, such as its mask.
    """

    plan: Any
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    root: AnyPath | None = None
    companions: tuple[AnyPath, ...] = ()


@dataclass(frozen=True)
class Tables:
    """The contents of a store's manifest and tables, made from the tables of all its shards.

    Attributes:
        samples: the rows of samples.npy.
        names: the lines of names.txt.
        images: the names of the images of a sample, if it has several.
        counts: the number of samples of each shard.
        records: the number of records of each shard, if it differs.
        sections: the manifest's sections of this kind.
        originals: for variants of codec "original", how many records are the bytes of their inputs.
        notes: what to tell the caller about the result.
    """

    samples: Array
    names: Iterable[str]
    counts: tuple[int, ...]
    records: tuple[int, ...] | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probed:
    """The result of preparing some inputs.

    Attributes:
        inputs: the number of all inputs.
        tried: the number of inputs that were tried.
        scale: the factor from the tried inputs to all.
        records: sizes in bytes.
        rejected: count by reason.
    """

    inputs: int
    tried: int
    scale: float
    records: list[int]
    rejected: Counter[str]


class Kind(Protocol):
    """The interface of one kind of data. The defaults suit most kinds.

    Methods for preparing import no torch.

    Attributes:
        name: the name in manifests.
        says: the data in messages: "text or tokens".
        item: one sample in messages: "image", "document".
        reader: the public name of the dataset that opens a store.
        read: what a file, and what files are read as, in messages.
        options: the dataclass of the options of `fastdata-prep`.
        shards: the module with the functions `make_shard`, `kept`, `tables` and `probe`, imported at first use.
        labels: kinds of labels that a store may have.
        exports: formats that `fastdata export` writes, the default first.
        named: whether names.txt has a line for each sample.
        variants: a regular expression for the names of variants; empty: the name of the kind.
        extra_files: files of some stores, such as a tokenizer.
        untyped: options in a manifest that are not typed: they follow from others, or from the files.
        hint: what to do if options of this kind are given for another.
    """

    name: str
    says: str
    item: str
    reader: str
    read: tuple[str, str] = ("an input", "inputs")
    options: type[Any]
    shards: str
    labels: tuple[str, ...] = ("class", "vector", "none")
    exports: tuple[str, ...]
    named: bool = True
    variants: str = ""
    extra_files: tuple[str, ...] = ()
    untyped: tuple[str, ...] = ()
    hint: str = ""

    # Preparing

    def claims(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether the source, or a given option, is of this kind."""

    def plan(self, source: StrPath, out: Path, options: Any, limit: int | None) -> Planned:
        """List the inputs and decide how to store them.

        Args:
            source: where they are.
            out: the store to make.
            options: an instance of `self.options`.
            limit: the number of inputs to take; None: all.
        """

    def make_shard(self, job: Any, task: Any, writers: Any, progress: Any) -> dict[str, Any]:
        """Write a shard's files in a worker. Return a table of plain JSON values with a list "rejects"."""
        return importlib.import_module(self.shards).make_shard(job, task, writers, progress)  # type: ignore[no-any-return]

    def machine(self) -> dict[str, str]:
        """Return what of this machine decides the bytes of shards, besides its architecture and the libraries' versions."""
        return {}

    def kept(self, table: dict[str, Any]) -> int:
        """Return the number of samples in a shard's table."""
        return importlib.import_module(self.shards).kept(table)  # type: ignore[no-any-return]

    def tables(self, plan: Any, found: Sequence[dict[str, Any]]) -> Tables:
        """Combine the tables of all shards, in order."""
        return importlib.import_module(self.shards).tables(plan, found)  # type: ignore[no-any-return]

    def probe(self, plan: Any, roots: tuple[AnyPath, ...]) -> Probed:
        """Prepare some inputs without keeping them."""
        return importlib.import_module(self.shards).probe(plan, roots)  # type: ignore[no-any-return]

    def plan_types(self) -> tuple[type[Any], tuple[type[Any], ...]]:
        """Return the dataclass of the options in a plan, and those of its inputs."""
        return importlib.import_module(self.shards).PLAN_TYPES  # type: ignore[no-any-return]

    def sizes(self, store: Any, sources: Sequence[Any]) -> tuple[int, int]:
        """Return the bytes of the kept inputs, and of their records."""
        before = sum(sources[k].size for k in store.samples["source"].tolist())
        return before, sum(int(store.index(v).lengths.sum()) for v in store.manifest.variants)

    def typed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest's options as they are typed."""
        return {key.replace("_", "-"): value for key, value in options.items()}

    def differences(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        """Yield lines on differences of two manifests' options that are not typed."""
        return iter(())

    # Joining stores

    def alike(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what must be equal in the options of two manifests, for the stores to be joined."""
        return {name: value for name, value in options.items() if name not in ("order", "shard_samples")}

    def join(self, stores: Any, samples: Any) -> dict[str, Any]:
        """Join stores: adapt the rows of samples.npy of each, and return the sections of the joint manifest.

        Args:
            stores: the stores.
            samples: the rows of each, in memory, which are changed.

        Raises:
            ValueError: these cannot be joined; why.
        """

    # What a store holds

    def reads(self, form: Any, *, mask: bool) -> bool:
        """Return whether this version reads records, or masks, of this form."""

    def section_types(self) -> dict[str, Any]:
        """Return what the manifest has for this kind only: the type of each section."""

    def samples_dtype(self, manifest: Any) -> Any:
        """Return the dtype of a row of samples.npy."""

    def check(self, store: Any) -> None:
        """Raise a FormatError if the tables of a store do not fit its records."""
        return

    def described(self, manifest: Any) -> str:
        """Describe a store's contents, as in "images with masks"."""
        return self.says

    # Information about a store

    def facts(self, store: Any) -> dict[str, Any]:
        """Return what `info` shows for this kind only; under "variants", facts of each variant by its name."""

    def previews(self, store: Any, rows: Array, size: int | None) -> Iterator[Any]:
        """Yield these samples as people see them, each a `fastdata.store.preview.Preview`. size: of images."""

    def export(self, store: Any, root: Path, to: str, size: int | None, tick: Callable[[int], None], **options: Any) -> int:
        """Write ordinary files into an empty folder. Return the number of samples, or files."""

    def dataset(self, manifest: Any) -> Any:
        """Return the dataset class that `fastdata.open` uses."""

    def in_memory(self) -> Any:
        """Return the class that `RAMDataset` uses."""


def find(name: str) -> Kind:
    """Return the kind of this name.

    Raises:
        KeyError: there is none.
    """
    return importlib.import_module(_MODULES[name]).KIND  # type: ignore[no-any-return]
