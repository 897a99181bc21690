"""The kinds of data and their interface: images, tokens and arrays.

The packages that serve every kind (`sources`, `store`, `prepare`, `data`) look kinds up here, and import none. A kind is an object
KIND in the module `kind` of its package; this and the other modules of the package are imported at first use.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["NAMES", "Modality", "Planned", "Tables", "find"]

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
        records: the number of records of each shard, if it differs.
        sections: the manifest's sections of this kind.
        originals: for variants of codec "original", how many records are the bytes of their inputs.
        notes: what to tell the caller about the result.
    """

    samples: Array
    names: Iterable[str]
    records: tuple[int, ...] | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


class Modality:
    """One kind of data. The defaults suit most kinds. Methods for preparing import no torch.

    Attributes:
        name: the name in manifests.
        says: the data in messages: "text or tokens".
        item: one sample in messages: "image", "document".
        options: the dataclass of the options of `fastdata-prep`.
        exports: formats that `fastdata export` writes, the default first.
        labels: kinds of labels that a store may have.
        named: whether names.txt has a line for each sample.
        variants: a regular expression for the names of variants.
        extra_files: files of some stores, such as a tokenizer.
        untyped: options in a manifest that are not typed: they follow from others, or from the files.
        hint: what to do if options of this kind are given for another.
    """

    name: str
    says: str
    item: str
    options: type[Any]
    exports: tuple[str, ...]
    variants: str
    labels: tuple[str, ...] = ("class", "vector", "none")
    named: bool = True
    extra_files: tuple[str, ...] = ()
    untyped: tuple[str, ...] = ()
    hint: str = ""

    def _module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")

    # Preparing

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether the source, or a given option, is of this kind."""
        raise NotImplementedError

    def plan(self, source: StrPath, out: Path, options: Any, limit: int | None) -> Planned:
        """List the inputs, at most `limit` of them, and decide how to store them in `out`. options: of `self.options`."""
        raise NotImplementedError

    @property
    def shards(self) -> ModuleType:
        """The module that makes and joins shards.

        `PLAN_TYPES` are the dataclass of the options in a plan, and those of its inputs; `make_shard(job, task, writers, progress)`
        returns a table of plain JSON values with the number "kept" and a list "rejects"; `tables(plan, found)` combines those of
        all shards.
        """
        return self._module("shards")

    def machine(self) -> dict[str, str]:
        """Return what of this machine decides the bytes of shards, besides its architecture and the libraries' versions."""
        return {}

    # Options in manifests

    def typed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest's options as they are typed."""
        return {key.replace("_", "-"): value for key, value in options.items()}

    def differences(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        """Yield lines on differences of two manifests' options that are not typed."""
        return iter(())

    def alike(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what must be equal in the options of two manifests, for the stores to be joined."""
        return {name: value for name, value in options.items() if name not in ("order", "shard_samples")}

    # Stores

    @property
    def sections(self) -> ModuleType:
        """The module for what manifests and tables have for this kind only.

        `TYPES` are the types of the sections of a manifest; `reads(form, mask)` is whether this version reads records, or masks, of
        this form; `samples_dtype(manifest)` is the dtype of a row of samples.npy; `check(store)` raises a FormatError if its tables
        do not fit its records; `merge(stores, samples)` adapts the rows of samples.npy of each store, and returns the sections of
        the joint manifest, or raises a ValueError.
        """
        return self._module("sections")

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        """Return the dataset class that `fastdata.open`, or RAMDataset, uses."""
        raise NotImplementedError

    def facts(self, store: Any) -> dict[str, Any]:
        """Return what `info` shows for this kind only; under "variants", facts of each variant by its name."""
        return self._module("preview").facts(store)  # type: ignore[no-any-return]

    def previews(self, store: Any, rows: Array, size: int | None) -> Iterator[Any]:
        """Yield these samples as people see them, each a `fastdata.store.preview.Preview`. size: of images."""
        return self._module("preview").previews(store, rows, size)  # type: ignore[no-any-return]

    def export(self, store: Any, root: Path, to: str, size: int | None, tick: Callable[[int], None], **options: Any) -> int:
        """Write ordinary files into an empty folder. Return the number of samples, or files."""
        return self._module("export").export(store, root, to, size, tick, **options)  # type: ignore[no-any-return]


def find(name: str) -> Modality:
    """Return the kind of this name.

    Raises:
        KeyError: there is none.
    """
    return importlib.import_module(_MODULES[name]).KIND  # type: ignore[no-any-return]
