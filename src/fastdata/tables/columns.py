"""What the manifest says of a store of a table: its columns, in which form each is stored, and where its records are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["DTYPES", "Column", "Table", "parse_table"]

INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")  # torch computes with int16, not with uint16
FLOATS = ("float16", "float32", "float64")
DTYPES = {
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
}  # the kinds of columns, and the dtypes that each may have


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as in the table.
        kind: a key of DTYPES. What stands in the column: numbers; "bool"; of a "category" the place of its name in `names`; of a
            "decimal" the number times 10^scale; of times the count of `unit` since 1970, or midnight; "empty": nothing but missing
            values.
        dtype: numpy's name of what is stored.
        type: what it was, as Arrow calls it; for people, and for export.
        missing: how many values of the store are missing; None: none ever were, and there is no mask. In their place stands NaN
            (floats), the number of names (categories) or 0.
        names: of a category, in the order of its codes.
        unit: of times: "D", "s", "ms", "us" or "ns".
        zone: of a timestamp that names moments, and not what clocks showed.
        scale: of a decimal.
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
    """All columns in the table's order, and the names of those that are targets."""

    columns: tuple[Column, ...]
    targets: tuple[str, ...] = ()

    def records(self) -> Iterator[tuple[Column, bool]]:
        """What each record of a shard holds, in their order: (column, False) its values, (column, True) its mask."""
        for column in self.columns:
            yield column, False
            if column.missing is not None:
                yield column, True

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


def parse_table(entry: Any, shards: Any) -> Table:
    """The manifest's `table`, checked. shards: the records of each.

    Raises:
        ValueError, TypeError, KeyError: it is not what a writer writes.
    """
    table = Table(tuple(map(_column, entry["columns"])), tuple(entry["targets"]))
    names = [column.name for column in table.columns]
    if len(set(names)) < len(names) or not set(table.targets) <= set(names) or len(set(table.targets)) < len(table.targets):
        raise ValueError(f"columns {names} with targets {list(table.targets)}")
    count = sum(1 for _ in table.records())
    if shards is None or any(records != count for records in shards):
        raise ValueError(f"shards have {count} records for these columns, not {shards}")
    return table


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
