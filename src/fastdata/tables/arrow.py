"""Convert Arrow's types to kinds of columns, and Arrow's arrays to numpy. pyarrow is an extra, imported when needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastdata.errors import MissingExtraError, PrepError
from fastdata.tables.columns import Column

__all__ = ["arrow", "codes", "describe", "missing_of", "plain", "reading", "used_names", "values_of"]

Array = np.ndarray[Any, np.dtype[Any]]


def arrow(module: str = "") -> Any:
    """Import pyarrow, or a module of it."""
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError:
        raise MissingExtraError("pyarrow") from None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error of pyarrow on damaged or unusual input into a PrepError."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, NotImplementedError, OverflowError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PrepError(f"{what} cannot be read as a table: {first:.300}") from error


def describe(name: str, kind: Any) -> Column:
    """Describe how a column of an Arrow type is stored. Its dtype is left empty, since it depends on the values.

    Raises:
        PrepError: if a store cannot hold such a column.
    """
    types = arrow("types")
    value = kind.value_type if types.is_dictionary(kind) else kind
    type_name = "string" if _is_text(value) else str(value)

    def column(what: str, unit: str = "", zone: str = "", scale: int = 0) -> Column:
        return Column(name, what, "", type_name, unit=unit, zone=zone, scale=scale)

    if types.is_null(value):
        return column("empty")
    if types.is_boolean(value):
        return column("bool")
    if types.is_integer(value):
        return column("integer")
    if types.is_floating(value):
        return column("float")
    if _is_text(value):
        return column("category")
    if types.is_decimal(value):
        return column("decimal", scale=value.scale)
    if types.is_date(value):
        return column("date", unit="D")
    if types.is_timestamp(value):
        return column("timestamp", unit=value.unit, zone=value.tz or "")
    if types.is_time(value) or types.is_duration(value):
        return column("time" if types.is_time(value) else "duration", unit=value.unit)
    what = "nested values" if types.is_nested(value) else "bytes" if "binary" in type_name else "values that cannot be stored"
    raise PrepError(
        f"column {name!r} holds {what} ({type_name}); leave it out (--drop {name}), or make numbers or names of it first"
    )


def _is_text(kind: Any) -> bool:
    types = arrow("types")
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")


def plain(array: Any, column: Column) -> Any:
    """Convert an array to the Arrow type of its kind: int64, uint64, a float, bool, decimal128, text or a dictionary of text."""
    pa, types = arrow(), arrow("types")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if types.is_dictionary(array.type) and (column.kind != "category" or array.dictionary.null_count):
        array = array.dictionary_decode()
    if column.kind == "integer":
        return array.cast(pa.uint64() if types.is_uint64(array.type) else pa.int64())
    if column.kind == "decimal":
        return array.cast(pa.decimal128(38, column.scale))
    if column.kind == "date":
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if column.kind in ("timestamp", "time", "duration"):
        whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return array.cast(whole).cast(pa.int64())
    if column.kind == "category" and not types.is_dictionary(array.type) and not _is_text(array.type):
        return array.cast(pa.string())  # --category of numbers
    return array


def missing_of(array: Any) -> Array | None:
    """Return where values are missing; None: no value is."""
    return None if not array.null_count else np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def values_of(array: Any, column: Column, missing: Array | None) -> Array:
    """Return the values of a plain array (not of names): int64, uint64, a float or bool. Missing floats are NaN, others 0."""
    if column.kind == "empty":
        return np.zeros(len(array), np.uint8)
    if column.kind == "decimal":
        return _unscaled(array, column, missing)
    if missing is not None:
        fill = float("nan") if column.kind == "float" else False if column.kind == "bool" else 0
        if column.kind == "float" and array.type.bit_width == 16:
            array = array.cast(arrow().float32())  # Arrow cannot fill nulls in float16
        array = array.fill_null(arrow().scalar(fill, array.type))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _unscaled(array: Any, column: Column, missing: Array | None) -> Array:
    """Return the unscaled integers of decimals, which Arrow keeps in 128 bits."""
    raw = np.frombuffer(array.buffers()[1], "<i8")[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2).copy()
    if missing is not None:
        raw[missing] = 0
    if (raw[:, 1] != raw[:, 0] >> 63).any():
        raise PrepError(
            f"column {column.name!r} holds decimals ({column.type}) of more than 64 bits; leave it out (--drop {column.name})"
        )
    return raw[:, 0].astype(np.int64)


def used_names(array: Any) -> list[str]:
    """Return the distinct names in a plain array."""
    compute, types = arrow("compute"), arrow("types")
    if types.is_dictionary(array.type):
        array = array.dictionary.take(compute.unique(array.indices).drop_null())
    found: list[str] = compute.unique(array).drop_null().to_pylist()
    return found


def codes(array: Any, names: Any) -> Array:
    """Return the place of each name in `names`, int64; -1 if it is missing or not among them."""
    compute, types = arrow("compute"), arrow("types")
    if not types.is_dictionary(array.type):
        return np.asarray(compute.index_in(array, value_set=names.cast(array.type)).fill_null(-1).to_numpy(), np.int64)
    if not len(array.dictionary):
        return np.full(len(array), -1, np.int64)
    places = np.asarray(compute.index_in(array.dictionary, value_set=names.cast(array.dictionary.type)).fill_null(-1).to_numpy())
    found = places[np.asarray(array.indices.fill_null(0).to_numpy(), np.int64)].astype(np.int64)
    missing = missing_of(array)
    if missing is not None:
        found[missing] = -1
    return found
