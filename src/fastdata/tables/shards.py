"""Make shards of tables in a worker, and the description of the columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastdata.errors import PrepError, StoreError
from fastdata.kinds import Probed, Tables
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import Job, Progress, Task, Writers
from fastdata.remote.path import AnyPath, to_path
from fastdata.sources.inputs import LARGEST_FLOAT
from fastdata.tables.arrow import arrow, codes, missing_of, plain, reading, values_of
from fastdata.tables.column_stats import exact
from fastdata.tables.columns import Column, Table
from fastdata.tables.planning import Head, Piece
from fastdata.tables.source import TableFile, first_rows
from fastdata.tables.text_columns import from_text

__all__ = ["kept", "make_shard", "probe", "tables"]

Array = np.ndarray[Any, np.dtype[Any]]


def make_shard(job: Job, task: Task, writers: Writers, progress: Progress) -> dict[str, Any]:
    """Store the columns of a piece, one record each, and a record for each mask."""
    piece: Piece = task.sources[0]
    for _, detail in task.skip.values():
        raise StoreError(f"{piece.name}: rows {piece.first} to {piece.first + piece.rows - 1} cannot be read: {detail}")
    table: Table = job.shared
    try:
        values, masks, targetless = _read(to_path(job.root) / piece.name, table, piece, progress.at)
    except PrepError as error:
        raise StoreError(str(error)) from error
    keep = ~_any(piece.rows, targetless)
    for column, is_mask in table.records():
        array = (masks if is_mask else values)[column.name]
        writers.append([(array if keep.all() else array[keep]).tobytes()])
    rejects = [_reject(piece, int(row), targetless) for row in np.flatnonzero(~keep)]
    progress.add(done=piece.size, rejected=len(rejects), size=piece.size)
    missing = {name: int(mask[keep].sum()) for name, mask in masks.items()}
    return {"rows": int(keep.sum()), "rejects": rejects, "missing": missing}


def _reject(piece: Piece, row: int, targetless: dict[str, Array]) -> dict[str, Any]:
    names = ", ".join(repr(name) for name, rows in targetless.items() if rows[row])
    place = piece.first + row
    detail = f"it has no value, or one that is not finite as float32, in {names}"
    return {"source": place, "name": f"row {place}", "reason": "no-target", "detail": detail}


def _read(
    path: AnyPath, table: Table, piece: Piece, at_batch: Callable[[int], None]
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Return the values of each column, the masks of those that have one, and where each target is missing."""
    names = {c.name: arrow().array(c.names, arrow().string()) for c in table.columns if c.kind == "category"}
    values = {c.name: np.empty(piece.rows, np.dtype(c.dtype).newbyteorder("<")) for c in table.columns}
    masks = {c.name: np.zeros(piece.rows, bool) for c in table.columns if c.missing is not None}
    targetless = {name: np.zeros(piece.rows, bool) for name in table.targets}
    at = 0
    for number, (batch, is_text) in enumerate(_batches(path, table, piece)):
        at_batch(number)
        rows = slice(at, at + batch.num_rows)
        at += batch.num_rows
        if at > piece.rows:
            break
        for column in table.columns:
            with reading(f"{path}, column {column.name!r}"):
                array = batch.column(batch.schema.get_field_index(column.name))
                encoded, missing = _encode(from_text(array, column) if is_text else array, column, names.get(column.name))
            values[column.name][rows] = encoded
            if column.name in targetless:
                unfit = np.zeros(len(encoded), bool)
                if column.kind == "float":
                    unfit = ~(np.abs(encoded.astype(np.float64)) <= LARGEST_FLOAT)
                targetless[column.name][rows] = unfit if missing is None else unfit | missing
            elif missing is not None:
                if column.missing is None:
                    raise _changed(path, column)
                masks[column.name][rows] = missing
    if at != piece.rows:
        raise PrepError(f"{path} has other rows than when it was listed; leave it alone while it is prepared, and start again")
    return values, masks, targetless


def _any(count: int, masks: dict[str, Array]) -> Array:
    """Return which of `count` rows any mask marks."""
    return np.logical_or.reduce([np.zeros(count, bool), *masks.values()])  # type: ignore[no-any-return]


def _batches(path: AnyPath, table: Table, piece: Piece) -> Iterator[tuple[Any, bool]]:
    """Yield batches of the piece's rows, and whether they are text, as those of a CSV are."""
    with reading(str(path)):
        file = TableFile(path)
        file.choose(c.name for c in table.columns)
        batches = file.read(piece.start, piece.stop, piece.first)
        for batch in first_rows(batches, piece.rows) if isinstance(piece, Head) else batches:
            yield batch, file.types is None


def _encode(array: Any, column: Column, names: Any) -> tuple[Array, Array | None]:
    """Return the values of a batch in the planned dtype, and where they are missing."""
    array = plain(array, column)
    missing = missing_of(array)
    if column.kind == "category":
        values = codes(array, names)
        unknown = values < 0 if missing is None else (values < 0) & ~missing
        values = np.where(values < 0, len(column.names), values)
        fits = not unknown.any()
    else:
        values = values_of(array, column, missing)
        fits = exact(values, column.dtype) if column.kind == "float" else _within(values, column.dtype)
    if not fits:
        raise _changed("the table", column)
    return values.astype(column.dtype), missing


def _within(values: Array, dtype: str) -> bool:
    if values.dtype == bool or not len(values):
        return True
    return bool(np.iinfo(dtype).min <= values.min() and values.max() <= np.iinfo(dtype).max)


def _changed(path: Any, column: Column) -> PrepError:
    return PrepError(f"{path}, column {column.name!r} holds other values than when it was listed; leave it alone, and start again")


def kept(table: dict[str, Any]) -> int:
    """Return the number of rows in a shard."""
    return int(table["rows"])


def probe(plan: Plan, roots: tuple[AnyPath, AnyPath]) -> Probed:
    """Read the first shard."""
    piece = plan.sources[0]
    rows = sum(piece.rows for piece in plan.sources)
    values, masks, targetless = _read(roots[0] / piece.name, plan.shared, piece, lambda number: None)
    rejected = int(_any(piece.rows, targetless).sum())
    records = [(masks if is_mask else values)[column.name].nbytes for column, is_mask in plan.shared.records()]
    return Probed(rows, piece.rows, rows / max(piece.rows, 1), records, Counter({"no-target": rejected} if rejected else {}))


def tables(plan: Plan, found: Sequence[dict[str, Any]]) -> Tables:
    """Describe the columns, with the number of missing values in each."""
    table: Table = plan.shared
    columns = tuple(
        c if c.missing is None else replace(c, missing=sum(shard["missing"][c.name] for shard in found)) for c in table.columns
    )
    count = sum(1 for _ in table.records())
    return Tables(
        samples=None,
        names=None,
        counts=tuple(map(kept, found)),
        records=(count,) * len(found),
        sections={"table": Table(columns, table.targets)},
    )
