"""What each kind of data does in its own way, loaded when it is needed.

A kind is a module of three functions. `make_shard(job, task, writers, progress)`, in a worker, fills the shard's files and returns
a table of plain JSON values. `tables(plan, found)` makes of the tables of all shards, in order, what the store says of itself.
`kept(table)` counts the samples of one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import PrepError

__all__ = ["Tables", "kind_of", "of"]

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


def of(kind: str) -> Any:
    """The module of a kind."""
    return importlib.import_module(_MODULES[kind])


def kind_of(source: Any, target: Any = None, category: Any = None, drop: Any = None) -> str:
    """Which kind of data SOURCE is: "images", or a "table".

    Raises:
        PrepError: the options don't fit it.
    """
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "__arrow_c_stream__") or type(source).__module__.partition(".")[0] == "pandas":
            return "table"
        raise TypeError(f"source is a {type(source).__name__}, but must be a path or a DataFrame")
    ending, is_folder = Path(source).suffix.lower(), Path(source).is_dir()
    if ending in (".parquet", ".pq") and not is_folder:
        if not target:
            raise PrepError(f"SOURCE {source} is a table: name the column to be learnt with --target NAME")
        return "table"
    if target and ending in (".csv", ".tsv") and not is_folder:
        return "table"
    for name, value in (("target", target), ("category", category), ("drop", drop)):
        if value:
            raise PrepError(
                f"--{name} is about columns: SOURCE has to be a .parquet, .csv or .tsv file, with --target; got {source}"
            )
    return "images"
