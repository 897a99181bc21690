"""What each kind of data does in its own way, loaded when it is needed.

A kind is a module of four functions. `make_shard(job, task, writers, progress)`, in a worker, fills the shard's files and returns
a table of plain JSON values. `tables(plan, found)` makes of the tables of all shards, in order, what the store says of itself.
`kept(table)` counts the samples of one. `probe(plan, roots)` prepares some inputs and keeps nothing.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Probed", "Tables", "of"]

_MODULES = {
    "images": "fastdata.prepare.image_shards",
    "tokens": "fastdata.prepare.text.token_shards",
    "table": "fastdata.prepare.table.table_shards",
}


@dataclass(frozen=True)
class Tables:
    """samples, names: of samples.npy and names.txt; None: the store has no such file. counts: samples of each shard. records: of
    each shard, if these are others. sections: what the manifest holds for this kind."""

    samples: np.ndarray[Any, np.dtype[Any]] | None
    names: Iterable[str] | None
    counts: tuple[int, ...]
    records: tuple[int, ...] | None = None
    sections: dict[str, Any] = field(default_factory=dict)


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
