"""The part of `fastdata info` on tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.store.info_lines import Facts, label_lines
from fastdata.store.store import Store
from fastdata.tables.columns import Column, Table
from fastdata.words import human_bytes, number_of

__all__ = ["column_values", "table_facts", "table_lines"]

Array = np.ndarray[Any, np.dtype[Any]]


def table_facts(store: Store) -> Facts:
    """Return the targets and the columns."""
    table: Table = store.manifest.section("table")
    columns = [{**vars(column), "names": list(column.names)} for column in table.columns]
    return {"targets": list(table.targets), "columns": columns}


def column_values(store: Store, column: Column, *, mask: bool = False, step: int = 1) -> Array:
    """Return every `step`-th value in each shard of a column or of its mask."""
    (variant,) = store.manifest.variants
    reader = store.reader(variant)
    records = list(store.manifest.section("table").records())
    dtype = np.dtype(bool if mask else column.dtype).newbyteorder("<")
    firsts = range(records.index((column, mask)), len(reader), len(records))
    return np.concatenate([np.zeros(0, dtype), *(np.frombuffer(reader.get(k), dtype)[::step] for k in firsts)])


def table_lines(facts: Facts) -> Iterator[str]:
    """Yield a line on the table and its targets, and one for each column."""
    table, labels, (variant,) = facts["table"], facts["labels"], facts["variants"]
    targets = {
        "class": number_of(len(labels.get("classes", ())), "class"),
        "integer": "whole numbers as targets",
        "vector": "float targets",
        "none": "no target",
    }[labels["kind"]]
    yield (
        f"{facts['path']}: {number_of(facts['samples'], 'row')} of {number_of(len(table['columns']), 'column')}, {targets}, "
        f"{human_bytes(variant['file_bytes'])} in {number_of(variant['shards'], 'shard')}, format {facts['format']}"
    )
    if labels["kind"] == "class":
        yield from label_lines(labels, "rows")
    for column in table["columns"]:
        yield f"  {column['name']}: {_column(column)}{' (target)' if column['name'] in table['targets'] else ''}"


def _column(column: Facts) -> str:
    parts = [column["dtype"], column["kind"] if column["kind"] == column["type"] else f"{column['kind']} ({column['type']})"]
    if column["kind"] == "category":
        names = column["names"]
        parts.append(f"{number_of(len(names), 'name')}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
    if column["kind"] == "decimal":
        parts.append(f"times 10^{column['scale']}")
    if column["missing"] is not None:
        parts.append(f"{column['missing']} missing")
    return ", ".join(parts)
