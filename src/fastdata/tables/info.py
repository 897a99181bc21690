"""What `fastdata info` tells of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastdata.store.info_lines import Facts, label_lines
from fastdata.store.store import Store
from fastdata.tables.columns import Table
from fastdata.words import human_bytes, number_of

__all__ = ["row_bytes", "table_facts", "table_lines", "target_classes"]

Array = np.ndarray[Any, np.dtype[Any]]

WORD = 8  # bytes: a row of a table in memory is a whole number of these


def table_facts(store: Store) -> Facts:
    """Return the targets and the columns."""
    table: Table = store.manifest.section("table")
    columns = [{**vars(column), "names": list(column.names)} for column in table.columns]
    return {"targets": list(table.targets), "columns": columns}


def target_classes(store: Store) -> Array:
    """Return the classes of a table's rows, int64 [n]."""
    table, (variant,) = store.manifest.section("table"), store.manifest.variants
    reader, records = store.reader(variant), list(table.records())
    column = table.column(table.targets[0])
    place, dtype = records.index((column, False)), np.dtype(column.dtype).newbyteorder("<")
    found = [np.frombuffer(reader.get(first + place), dtype) for first in range(0, len(reader), len(records))]
    return np.concatenate([np.zeros(0, dtype), *found]).astype(np.int64)


def row_bytes(table: Table, labels: str) -> int:
    """Return the bytes of a row in memory: a value and a mask for each column, and the target."""
    target = {"none": 0, "vector": 4 * len(table.targets)}.get(labels, 8)
    columns = [column for column in table.columns if column.name not in table.targets]
    size = target + sum(np.dtype(column.dtype).itemsize + (column.missing is not None) for column in columns)
    return -(-size // WORD) * WORD


def table_lines(facts: Facts) -> Iterator[str]:
    """Its size, its targets, and a line for each column."""
    table, labels, (variant,) = facts["table"], facts["labels"], facts["variants"]
    said = {
        "class": number_of(len(labels.get("classes", ())), "class"),
        "integer": "whole numbers as targets",
        "vector": "float targets",
        "none": "no target",
    }[labels["kind"]]
    yield (
        f"{facts['path']}: {number_of(facts['samples'], 'row')} of {number_of(len(table['columns']), 'column')}, {said}, "
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
