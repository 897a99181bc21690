"""A table held in memory, as every table is."""

from __future__ import annotations

from fastdata.data.ram import RAMDataset, StrPath
from fastdata.tables.dataset import TableDataset

__all__ = ["RAMTable"]


class RAMTable(RAMDataset, TableDataset):
    """A table, which is held in memory anyway; see RAMDataset."""

    def __init__(self, source: StrPath) -> None:
        super().__init__(source)
