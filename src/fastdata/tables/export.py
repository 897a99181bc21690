"""Export a table to Parquet, with the values that went in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import FormatError, StoreError
from fastdata.store.place import remedy
from fastdata.store.store import Store
from fastdata.tables.arrow import arrow
from fastdata.tables.columns import Column

__all__ = ["export_table"]

Array = np.ndarray[Any, np.dtype[Any]]


def export_table(store: Store, root: Path, tick: Callable[[int], None]) -> int:
    """Write `table.parquet`: all columns in the table's order with their original types, targets too. Return 1, for one file."""
    pa = arrow()
    columns = store.manifest.section("table").columns
    schema = pa.schema([(column.name, _type(column)) for column in columns])
    try:
        root.mkdir(parents=True, exist_ok=True)
        with arrow("parquet").ParquetWriter(root / "table.parquet", schema) as writer:
            for shard in _shards(store):
                arrays = [_array(c, schema.field(k).type, *shard[c.name]) for k, c in enumerate(columns)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                tick(len(arrays[0]))
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"export to {root}: {error}") from error
    return 1


def _shards(store: Store) -> Iterator[dict[str, list[Array]]]:
    """Yield the values of each column, and its mask if it has one, shard by shard."""
    table, (variant,) = store.manifest.section("table"), store.manifest.variants
    reader = store.reader(variant)
    at = 0
    for count in store.manifest.shard_samples:
        found: dict[str, list[Array]] = {}
        for column, is_mask in table.records():
            dtype = np.dtype(bool if is_mask else column.dtype).newbyteorder("<")
            values = np.frombuffer(bytes(reader.get(at)), dtype)
            if len(values) != count:
                raise FormatError(
                    f"{store.place}: record {at} has {len(values)} values, not {count}; {remedy(reader, at, store.place)}"
                )
            found.setdefault(column.name, []).append(values)
            at += 1
        yield found


def _type(column: Column) -> Any:
    """Return the original Arrow type of a column."""
    pa = arrow()
    if column.kind == "decimal":
        digits = re.search(r"\((\d+)", column.type)
        precision = int(digits[1]) if digits else 38
        return pa.decimal128(precision, column.scale) if precision <= 38 else pa.decimal256(precision, column.scale)
    if column.kind == "timestamp":
        return pa.timestamp(column.unit, column.zone or None)
    if column.kind == "time":
        return pa.time32(column.unit) if column.unit in ("s", "ms") else pa.time64(column.unit)
    fixed = {"category": pa.string(), "bool": pa.bool_(), "date": pa.date32(), "empty": pa.null(), "duration": None}
    if column.kind in fixed:
        return fixed[column.kind] or pa.duration(column.unit)
    try:
        return pa.type_for_alias(column.type)
    except ValueError:
        return pa.from_numpy_dtype(np.dtype(column.dtype))


def _array(column: Column, kind: Any, values: Array, mask: Array | None = None) -> Any:
    """Convert the values of a column to an array of its Arrow type."""
    pa = arrow()
    if column.kind == "empty":
        return pa.nulls(len(values))
    if column.kind == "category":
        codes = pa.array(values.astype(np.int64), mask=mask)
        return pa.array(column.names, pa.string()).take(codes)
    if column.kind == "float":
        return pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=mask)
    if column.kind == "decimal":
        return _decimals(values, mask, kind)
    if column.kind in ("date", "time", "timestamp", "duration"):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values.astype(np.int64), whole, mask=mask).cast(kind)
    return pa.array(values, mask=mask).cast(kind)


def _decimals(values: Array, mask: Array | None, kind: Any) -> Any:
    """Convert unscaled integers to Arrow's decimals of 128 bits."""
    pa = arrow()
    low = values.astype(np.int64)
    raw = np.stack([low, low >> 63], axis=1).astype("<i8")
    bits = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little").tobytes())
    array = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(values), [bits, pa.py_buffer(raw.tobytes())])
    return array.cast(kind)
