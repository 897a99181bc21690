"""Make a plan from a table: one pass over it fixes each column's dtype and names, and where shards begin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from fastdata.errors import PrepError
from fastdata.kinds import Planned
from fastdata.prepare.plan import freeze
from fastdata.remote.path import AnyPath
from fastdata.sources.notes import FEW_EACH, MANY_CLASSES
from fastdata.store.files import file_sum
from fastdata.store.format import Form, Labels, read_current
from fastdata.tables.arrow import describe, reading
from fastdata.tables.column_stats import ColumnStats
from fastdata.tables.columns import MASK, Column, Table
from fastdata.tables.options import TableOptions
from fastdata.tables.source import Part, TableFile, first_rows
from fastdata.tables.text_columns import TextStats

__all__ = ["Head", "Piece", "TableRecipe", "plan_table"]

SHARD_ROWS, SHARD_BYTES = 1 << 17, 64 << 20  # a shard ends after the part that reaches one of these


@dataclass(frozen=True)
class TableRecipe:
    """How a table is stored. columns: checksum of what the pass over the table found."""

    target: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    columns: str = ""

    kind: ClassVar[str] = "table"
    unit: ClassVar[str] = "B"
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def variants(self) -> list[tuple[str, int | None, Form]]:
        return [("table", None, Form("table", 1, "uint8"))]


@dataclass(frozen=True)
class Piece:
    """The rows of a shard, from `first` on. start, stop: place in the file. size: approximate bytes. sum: the file's checksum."""

    name: str
    first: int
    rows: int
    start: int
    stop: int
    size: int
    sum: str


@dataclass(frozen=True)
class Head(Piece):
    """The first rows of a piece; later rows at this place are not read."""


def plan_table(path: AnyPath, options: TableOptions, limit: int | None = None) -> Planned:
    """Read a table once and decide how to store it. limit: use this many rows, the first ones, and ignore all others.

    Raises:
        PrepError: if it cannot be read, lacks a column of the options, or holds values that cannot be stored.
    """
    target, category, drop = (tuple(dict.fromkeys(names)) for names in (options.target, options.category, options.drop))
    recipe = TableRecipe(target, category, drop)
    with reading(str(path)):
        file = TableFile(path)
        names = _kept_names(file, recipe)
        file.choose(names)
        columns, parts, is_cut = _scan(file, names, recipe, limit)
    if not sum(part.rows for part in parts):
        raise PrepError(f"{path} has no rows")
    if options.classes is not None:
        columns = _with_names(columns, Path(options.classes))
    _check_masks(columns)
    table = Table(tuple(columns), recipe.target)
    labels = _labels(table)
    sources = _pieces(path.name, parts, file_sum(Path(path)).xxh3_128)
    if is_cut:
        sources[-1] = Head(**vars(sources[-1]))
    recipe = replace(recipe, columns=xxhash.xxh3_128_hexdigest(json.dumps(asdict(table), sort_keys=True).encode()))
    plan = freeze(recipe, labels, tuple(sources), tuple(range(len(sources) + 1)), shared=table)
    return Planned(plan, notes=tuple(_table_notes(table, sum(piece.rows for piece in sources))))


def _kept_names(file: TableFile, recipe: TableRecipe) -> list[str]:
    """Return the names of the columns to store, and check those of the options."""
    for option in ("target", "category", "drop"):
        for name in getattr(recipe, option):
            if name not in file.names:
                known = ", ".join(map(repr, file.names[:20])) + (", ..." if len(file.names) > 20 else "")
                raise PrepError(f"--{option} {name}: {file.path} has no such column; it has {known}")
    if both := sorted({*recipe.target, *recipe.category} & set(recipe.drop)):
        raise PrepError(f"column {both[0]!r} is to be left out (--drop), and to be used too; choose one")
    kept = [name for name in file.names if name not in recipe.drop]
    if not set(kept) - set(recipe.target):
        raise PrepError(f"{file.path} has no column besides {', '.join(map(repr, file.names))}: nothing is left to learn from")
    return kept


def _scan(file: TableFile, names: list[str], recipe: TableRecipe, limit: int | None) -> tuple[list[Column], list[Part], bool]:
    """Return the columns, the parts, and whether rows of the last part are left out."""
    if file.types is None:
        stats: dict[str, Any] = {name: TextStats(name, name in recipe.category) for name in names}
    else:
        columns = (describe(name, file.types[name]) for name in names)
        stats = {c.name: ColumnStats(replace(c, kind="category") if c.name in recipe.category else c) for c in columns}
    parts: list[Part] = []
    left = sys.maxsize if limit is None else limit
    is_cut = False
    for part, batches in file.parts():
        is_cut = part.rows > left
        parts.append(replace(part, rows=left, size=part.size * left // part.rows) if is_cut else part)
        left -= parts[-1].rows
        for batch in first_rows(batches, parts[-1].rows):
            for name, column in stats.items():
                with reading(f"{file.path}, column {name!r}"):
                    column.add(batch.column(batch.schema.get_field_index(name)))
        if not left:
            break
    found = [column.result() for column in stats.values()]
    return [replace(c, missing=None) if c.name in recipe.target else c for c in found], parts, is_cut


def _check_masks(columns: Iterable[Column]) -> None:
    names = {column.name for column in columns}
    for column in columns:
        if column.missing is not None and column.name + MASK in names:
            raise PrepError(
                f"columns {column.name!r} and {column.name + MASK!r}: the second has the name of the first one's mask; rename it"
            )


def _labels(table: Table) -> Labels:
    """Derive labels from the targets: names and booleans are classes, a whole number is itself, other numbers are float vectors."""
    targets = [table.column(name) for name in table.targets]
    if not targets:
        return Labels("none")
    if len(targets) == 1 and targets[0].kind in ("category", "bool"):
        return Labels("class", targets[0].names or ("false", "true"))
    for column in targets:
        if column.kind not in ("integer", "float", "decimal", "bool"):
            what = (
                "names: give it as the only target" if column.kind == "category" else f"{column.kind} values, not numbers or names"
            )
            raise PrepError(f"--target {column.name!r} holds {what}")
    if len(targets) == 1 and targets[0].dtype == "uint64":
        name = targets[0].name
        raise PrepError(
            f"--target {name!r} holds whole numbers above 2^63 - 1, and targets are int64: to take them as classes, add "
            f"--category {name}"
        )
    return Labels("integer" if len(targets) == 1 and targets[0].kind == "integer" else "vector", table.targets)


def _with_names(columns: Sequence[Column], store: Path) -> list[Column]:
    """Replace the names of categories by those of another store, which must contain them."""
    table = read_current(store)[1].section("table")
    if table is None:
        raise PrepError(f"--classes {store}: that store holds no table")
    theirs = {column.name: column for column in table.columns if column.kind == "category"}
    out = []
    for column in columns:
        other = theirs.get(column.name)
        if column.kind != "category" or other is None:
            out.append(column)
            continue
        if unknown := sorted(set(column.names) - set(other.names)):
            raise PrepError(f"column {column.name!r} has names that {store} does not have: {', '.join(map(repr, unknown[:5]))}")
        out.append(replace(column, names=other.names, dtype=other.dtype))
    return out


def _pieces(name: str, parts: Sequence[Part], checksum: str) -> list[Piece]:
    """Join consecutive parts until they are large enough for a shard."""
    pieces: list[Piece] = []
    first = rows = size = 0
    begin: int | None = None
    for k, part in enumerate(parts):
        begin = part.start if begin is None else begin
        rows += part.rows
        size += part.size
        if rows >= SHARD_ROWS or size >= SHARD_BYTES or k == len(parts) - 1:
            pieces.append(Piece(name, first, rows, begin, part.stop, size, checksum))
            first += rows
            rows = size = 0
            begin = None
    return pieces


def _table_notes(table: Table, rows: int) -> Iterator[str]:
    """Yield a note for each category that has nearly as many names as there are rows."""
    for column in table.columns:
        if column.kind == "category" and len(column.names) >= MANY_CLASSES and rows < FEW_EACH * len(column.names):
            remedy = "" if column.name in table.targets else f" --drop {column.name} leaves it out"
            yield f"column {column.name} holds {len(column.names)} names in {rows} rows: is it a category?{remedy}"
