"""The kinds of data (images, tokens and arrays) and their interface.

The packages that serve every kind (`sources`, `store`, `prepare`, `data`) look kinds up here, and import no kind. A kind is an
object KIND in the module `kind` of its package; this and the other modules of the package are imported at first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastdata.types import Array, StrPath

_MODULES = {
    "images": "fastdata.images.kind",
    "arrays": "fastdata.arrays.kind",
    "tokens": "fastdata.text.kind",
}
NAMES = tuple(_MODULES)


@dataclass(frozen=True)
class Tables:
    """The contents of a store's manifest and tables, made from the tables of all its shards.

    Attributes:
        samples: the rows of samples.npy.
        names: the lines of names.txt.
        images: the names of the images of a sample, if it has several.
        records: the number of records of each shard, if it is not the number of samples.
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
    """One kind of data. Its functions are in modules of its package; the modules for preparing do not import torch.

    planning: `plan_source(source, out, options, limit)` returns a Plan of at most `limit` inputs, to be stored in `out`.
    shards: `PLAN_TYPES` are the classes of a plan's options and of its inputs; `make_shard(job, task, writers, progress)` returns a
        table of JSON values with the number "kept" and a list "rejects"; `tables(plan, found)` combines the tables of all shards.
    sections: `TYPES` are the types of the sections of a manifest; `reads(form, mask)` is whether this version reads records
        (masks, if `mask`) of this form; `samples_dtype(manifest)` is samples.npy's dtype; `check(store)` raises a FormatError if
        its tables do not fit; `merge(stores, samples)` adapts the rows of samples.npy of each store, and returns the sections of
        the joint manifest, or raises a ValueError.
    preview: `facts(store)` returns what `info` shows only for this kind; its "variants" has facts of each variant, by name;
        `previews(store, rows)` yields these samples as Previews.
    export: `export(store, root, to, size, tick, **options)` writes files into an empty folder, and returns the number of samples.

    Attributes:
        name: the name in manifests and messages.
        item: one sample in messages: "image", "document".
        options: the dataclass of the options of `fastdata-prep`.
        exports: formats that `fastdata export` writes, the default first.
        datasets: the classes in module `dataset` that read from disk, and from memory.
        named: whether names.txt has a line for each sample.
    """

    name: str
    item: str
    options: type[Any]
    exports: tuple[str, ...]
    datasets: tuple[str, str]
    named: bool = True

    def module(self, name: str) -> Any:
        """Return a module of the kind's package."""
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Return whether the source, or a given option, is of this kind."""
        raise NotImplementedError

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        """Return the dataset class that `fastdata.open`, or RAMDataset, uses."""
        return getattr(self.module("dataset"), self.datasets[in_memory])


def find(name: str) -> Modality:
    """Return the kind of this name."""
    return importlib.import_module(_MODULES[name]).KIND  # type: ignore[no-any-return]
