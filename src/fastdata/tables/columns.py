"""The description of a table in a manifest: its columns, how each is stored, and where its records are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["FLOATS", "INTEGERS", "MASK", "Column", "Table", "join_tables", "parse_table"]

MASK = ".missing"  # a batch has a column's mask under its name and this
INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")  # torch computes with int16, not with uint16
FLOATS = ("float16", "float32", "float64")
DTYPES = {  # by kind of column
    "integer": INTEGERS,
    "float": FLOATS,
    "bool": ("bool",),
    "category": INTEGERS,
    "decimal": INTEGERS,
    "date": ("int32",),
    "timestamp": ("int64",),
    "time": ("int64",),
    "duration": ("int64",),
    "empty": ("uint8",),
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: its name in the table.
        kind: a key of DTYPES. It says what a value is: a number; a bool; for "category" the place of a name in `names`; for
            "decimal" the number times 10^scale; for times the count of `unit` since 1970 or midnight; "empty" has missing values
            only.
        dtype: numpy's name of the stored dtype.
        type: Arrow's name of the original type, for people and for export.
        missing: how many values of the store are missing, which hold NaN (floats), the number of names (categories) or 0; None: the
            column has no mask, since no value was missing.
        names: the names of a category, in the order of its codes.
        unit: the unit of times: "D", "s", "ms", "us" or "ns".
        zone: the time zone of a timestamp; empty: local times.
        scale: the scale of a decimal.
    """

    name: str
    kind: str
    dtype: str
    type: str
    missing: int | None = None
    names: tuple[str, ...] = ()
    unit: str = ""
    zone: str = ""
    scale: int = 0


@dataclass(frozen=True)
class Table:
    """All columns in the table's order, and the names of the targets."""

    columns: tuple[Column, ...]
    targets: tuple[str, ...] = ()

    def records(self) -> Iterator[tuple[Column, bool]]:
        """Yield what each record of a shard holds, in order: (column, False) for its values, (column, True) for its mask."""
        for column in self.columns:
            yield column, False
            if column.missing is not None:
                yield column, True

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


def parse_table(entry: Any, shards: Any) -> Table:
    """Read the manifest's `table` and check it. shards: number of records of each shard.

    Raises:
        ValueError, TypeError, KeyError: if it is damaged.
    """
    table = Table(tuple(map(_column, entry["columns"])), tuple(entry["targets"]))
    names = [column.name for column in table.columns]
    if len(set(names)) < len(names) or not set(table.targets) <= set(names) or len(set(table.targets)) < len(table.targets):
        raise ValueError(f"columns {names} with targets {list(table.targets)}")
    count = sum(1 for _ in table.records())
    if shards is None or any(records != count for records in shards):
        raise ValueError(f"shards have {count} records for these columns, not {shards}")
    return table


def join_tables(tables: Sequence[Table]) -> Table:
    """Join the descriptions of tables.

    Raises:
        ValueError: a column is not stored alike in all.
    """
    first = tables[0]
    for other in tables[1:]:
        names, others = ([column.name for column in table.columns] for table in (first, other))
        if names != others or first.targets != other.targets:
            raise ValueError(
                f"their columns are {', '.join(names)} with the targets {', '.join(first.targets) or 'none'}, and "
                f"{', '.join(others)} with {', '.join(other.targets) or 'none'}"
            )
        for one, two in zip(first.columns, other.columns, strict=True):
            for what in ("kind", "dtype", "unit", "zone", "scale", "names"):
                if getattr(one, what) != getattr(two, what):
                    raise ValueError(
                        f"column {one.name} has the {what} {getattr(one, what)!r} in one and {getattr(two, what)!r} in another: a "
                        "table is stored as narrowly as its values allow, so prepare all rows together"
                    )
            if (one.missing is None) != (two.missing is None):
                raise ValueError(f"column {one.name} has missing values in one and none in another: prepare all rows together")
    columns = [
        replace(one, missing=None if one.missing is None else sum(table.column(one.name).missing or 0 for table in tables))
        for one in first.columns
    ]
    return Table(tuple(columns), first.targets)


def _column(entry: Any) -> Column:
    wanted = {"name": str, "kind": str, "dtype": str, "type": str, "names": list, "unit": str, "zone": str, "scale": int}
    for key, kind in wanted.items():
        if type(entry[key]) is not kind:
            raise TypeError(f"a column's {key} is {entry[key]!r:.80}, expected a {kind.__name__}")
    missing = entry["missing"]
    if entry["dtype"] not in DTYPES[entry["kind"]] or not (missing is None or (type(missing) is int and missing >= 0)):
        raise ValueError(f"column {entry['name']!r}: {entry['kind']}, {entry['dtype']}, missing {missing!r:.80}")
    if not all(type(name) is str for name in entry["names"]):
        raise TypeError(f"column {entry['name']!r} has names that are not text")
    return Column(**{key: entry[key] for key in wanted if key != "names"}, missing=missing, names=tuple(entry["names"]))
