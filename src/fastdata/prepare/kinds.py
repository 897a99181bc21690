"""What each kind of data does in its own way, loaded when it is needed.

A kind is a module of four functions. `make_shard(job, task, writers, progress)`, in a worker, fills the shard's files and returns
a table of plain JSON values. `tables(plan, found)` makes of the tables of all shards, in order, what the store says of itself.
`kept(table)` counts the samples of one. `probe(plan, roots)` prepares some inputs and keeps nothing.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.prepare.inputs import is_image
from fastdata.prepare.walk import walk_files

__all__ = ["Probed", "Tables", "kind_of", "of"]

_MODULES = {
    "images": "fastdata.prepare.image_shards",
    "tokens": "fastdata.prepare.text.token_shards",
    "arrays": "fastdata.prepare.arrays.array_shards",
    "table": "fastdata.prepare.table.table_shards",
}
_ENDINGS = {"arrays": (".npy", ".npz", ".nii", ".nii.gz", ".dcm")}  # that tell a kind; all others may be images


@dataclass(frozen=True)
class Tables:
    """samples, names: of samples.npy and names.txt; None: the store has no such file. counts: samples of each shard. records: of
    each shard, if these are others. sections: what the manifest holds for this kind. originals: of variants of codec "original",
    how many records are the bytes of their inputs. notes: what the caller shall know of what was made."""

    samples: np.ndarray[Any, np.dtype[Any]] | None
    names: Iterable[str] | None
    counts: tuple[int, ...]
    records: tuple[int, ...] | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probed:
    """Of some inputs: how many there are in all, how many were tried, and by what to multiply; the sizes of the records that they
    made; the reasons of rejects."""

    inputs: int
    tried: int
    scale: float
    records: list[int]
    rejected: Counter[str]


def of(kind: str) -> Any:
    """The module of a kind."""
    return importlib.import_module(_MODULES[kind])


def kind_of(source: str | os.PathLike[str]) -> str:
    """What kind of data a folder, a table of paths or a file holds, by the endings of its files. If there are images, images."""
    path, found = Path(source), "images"
    for name in _names(path):
        if is_image(name):
            return "images"
        found = next((kind for kind, endings in _ENDINGS.items() if name.lower().endswith(endings)), found)
    return found


def _names(path: Path) -> Iterator[str]:
    """Of the files in a folder, in the first rows of a table, or of the one file."""
    if path.is_dir():
        yield from (name for name, _, _ in walk_files(path))
    elif path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from (re.split(r"[,\t]", line)[0].strip('" \n') for line in itertools.islice(file, 3))
    else:
        yield path.name
