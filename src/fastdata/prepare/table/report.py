"""What `fastdata info` says of a table."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.store.store import Store
from fastdata.store.table import Column

__all__ = ["table_lines"]


def table_lines(store: Store) -> Iterator[str]:
    """Its size, its targets, and a line for each column."""
    manifest, table = store.manifest, store.manifest.table
    assert table is not None
    (variant,) = manifest.variants
    count, size = len(variant.shards), sum(shard.bytes for shard in variant.shards)
    said = {
        "class": f"{len(manifest.labels.names)} classes",
        "integer": "whole numbers as targets",
        "vector": "float targets",
        "none": "no target",
    }[manifest.labels.kind]
    yield (
        f"{store.path}: {len(store)} rows of {len(table.columns)} columns, {said}, {size / 1e6:.1f} MB in {count} "
        f"shard{'s' * (count != 1)}, format {manifest.version}"
    )
    for column in table.columns:
        yield f"  {column.name}: {_said(column)}{' (target)' if column.name in table.targets else ''}"


def _said(column: Column) -> str:
    parts = [column.dtype, column.kind if column.kind == column.type else f"{column.kind} ({column.type})"]
    if column.kind == "category":
        parts.append(f"{len(column.names)} names: {', '.join(column.names[:5])}{', ...' if len(column.names) > 5 else ''}")
    if column.kind == "decimal":
        parts.append(f"times 10^{column.scale}")
    if column.missing is not None:
        parts.append(f"{column.missing} missing")
    return ", ".join(parts)
