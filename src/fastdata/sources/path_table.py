"""Tables of paths and labels: as SOURCE, or as labels for a folder of images (`--labels`)."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.fields import Field
from fastdata.sources.folder import list_entries
from fastdata.sources.inputs import FieldSource, Source, SourceList, SplitsError, look
from fastdata.sources.labels import Encode, Value, encode_labels, read_classes, relabelled
from fastdata.sources.notes import not_stored
from fastdata.sources.options import NO_LABELS, LabelOptions
from fastdata.sources.packed import Packed
from fastdata.sources.tables import INDEX, LABELS, PathTable, SimilarNames, read_table
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.store.column import Column
from fastdata.store.manifest import Labels

__all__ = ["list_table", "with_table"]

Array = np.ndarray[Any, np.dtype[Any]]

SPLIT = "split"


def list_table(path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """List the inputs that a table names, with their labels, and with the values of `fields`, which are columns of it.

    Raises:
        PrepError: the table cannot be read, holds several splits, or lacks a column that an option names.
    """
    root = path.parent if options.root is None else to_path(options.root)
    files = _Files(root, path)
    table = read_table(path, root, options.path_column, lambda name: not files.look(name)[2], _wanted(options, fields))
    split = table.find([SPLIT]) if table.named else None
    if split is None and options.split is not None:
        split = table.index(SPLIT, f"--split {options.split}")
    if split is not None:
        table = _select_split(table, split, options.split)
    typed = list(map(table.typed, fields))
    stored = [table.columns.index(field.path[0]) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, split, *stored)]
    columns = [] if options.labels is not None else _label_columns(table, others, options)
    cells, (meaning, encode) = _labels(table, columns, options)
    values = zip(*(values for _, values in typed), strict=True) if typed else repeat((), len(table.rows))
    look_at_all(root, table.names())
    sources = Packed(
        relabelled(Source(name, -1, size, problem, values=own), *label)
        for (name, size, problem), label, own in zip(map(files.look, table.names()), map(encode, cells), values, strict=True)
    )
    notes = (*_left_out(table, columns, others), *_repeated(table, sources, cells))
    stored_fields, by = _sources_of(fields, typed), table.describe(columns)
    return SourceList(root, meaning, sources, labelled_by=by, notes=notes, fields=stored_fields, selected=True)


class _Files:
    """Looks at the files that a table names, or means where there is none of that name."""

    def __init__(self, root: AnyPath, table: AnyPath) -> None:
        self._root, self._table = root, table
        self._folders = dict[str, SimilarNames]()

    def look(self, name: str) -> tuple[str, int, str]:
        """Return the name of the file, its size and its problem."""
        size, problem = look(join(self._root, name))
        if problem != "missing":
            return name, size, problem
        folder = name.replace("\\", "/").rpartition("/")[0]
        if folder not in self._folders:
            path = join(self._root, folder) if folder else self._root
            names = [entry.name for entry in list_entries(path)] if path.is_dir() else []
            self._folders[folder] = SimilarNames(f"{folder}/{one}" if folder else one for one in names)
        similar = self._folders[folder].find(name, self._table)
        return (similar, *look(join(self._root, similar))) if similar else (name, size, problem)


def _sources_of(fields: Sequence[Field], typed: Sequence[tuple[Column, Sequence[Any]]]) -> tuple[FieldSource, ...]:
    return tuple(FieldSource(column, True, layout=one.layout) for one, (column, _) in zip(fields, typed, strict=True))


def _wanted(options: LabelOptions, fields: Sequence[Field]) -> set[str]:
    return {*(field.path[0] for field in fields), options.label_column or "", *options.regression}


def _repeated(table: PathTable, sources: Sequence[Source], cells: Sequence[Value]) -> tuple[str, ...]:
    """Return a note on the files that occur more than once, or nothing.

    Raises:
        PrepError: a file occurs with different labels.
    """
    first: dict[str, int] = {}
    again = []
    for k in _of_equal_checksums((one.name for one in sources), len(sources)):
        name = sources[k].name
        before = first.setdefault(os.path.normpath(name), k)
        one, other = sources[before], sources[k]
        if one.problem != other.problem or (not one.problem and one.label != other.label):
            raise PrepError(
                f"{table.path} names {name!r} more than once, with different labels: {cells[before]!r} and {cells[k]!r}; keep "
                "the row that is right"
            )
        if before != k:
            again.append(name)
    label = " with the same label" if any(value is not None for value in cells) else ""
    rows = f"{len(again)} rows of {table.path.name} repeat" if len(again) > 1 else f"1 row of {table.path.name} repeats"
    return (f"{rows} a path{label}, such as {again[0]}; each row is a sample",) if again else ()


def _of_equal_checksums(names: Iterable[str], count: int) -> list[int]:
    """Return the places of the names that may be equal to another one, in order."""
    sums = _checksums(names, count)
    ordered = np.sort(sums)
    several = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    found: list[int] = np.flatnonzero(np.isin(sums, several)).tolist() if len(several) else []
    return found


def _checksums(names: Iterable[str], count: int) -> Array:
    """Return a checksum of the normal form of each path, uint64 [count]."""
    encoded = (os.path.normpath(name).encode("utf-8", "surrogatepass") for name in names)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, count)


def _left_out(table: PathTable, labels: Sequence[int], others: Sequence[int]) -> tuple[str, ...]:
    left = [table.columns[k] or "one without a name" for k in others if k not in labels]
    paths = table.columns[table.paths] or "without a name"
    return (not_stored(left, f"paths come from {'column ' if table.named else ''}{paths}"),) if left else ()


def _select_split(table: PathTable, column: int, wanted: str | None) -> PathTable:
    """Keep the rows of one split. If none is named, the table must have only one."""
    splits = Packed(map(str, table.column(column)))
    names = sorted(set(splits))
    if wanted is None:
        if len(names) > 1:
            odd = next((f"rows of split {name!r}" for name in names if not name or "/" in name), "")
            raise SplitsError(table.path, {name: str(table.path) for name in names}, column=True, beside=odd)
        return table
    if wanted not in names:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(names)}")
    return replace(table, rows=Packed(row for row, split in zip(table.rows, splits, strict=True) if split == wanted))


def _label_columns(table: PathTable, others: Sequence[int], options: LabelOptions) -> list[int]:
    """Return the columns that the caller names; else the one with a usual name; else the only one.

    Raises:
        PrepError: there is no such column, or several may be the one.
    """
    if options.no_labels or options.label_from is not None:
        return []
    if options.regression:
        return [table.index(name, f"--regression {name}") for name in options.regression]
    if options.label_column is not None:
        return [table.index(options.label_column, f"--label-column {options.label_column}")]
    plain = [k for k in others if table.is_plain(k)]
    usual = [k for k in others if table.named and table.columns[k].lower() in LABELS]
    found = usual if len(usual) == 1 else [k for k in plain if not INDEX.fullmatch(table.columns[k])] or plain
    if len(found) > 1:
        which = ", ".join(table.columns[k] for k in found) if table.named else f"{len(found)} columns without a name"
        first = "" if table.named else "give the table a first line, such as path,label, and "
        of_values = "" if table.holds_paths() else "; a table without paths is not prepared: TableDataset reads it"
        raise PrepError(
            f"{table.path}: its labels may be {which}: {first}name the column of classes with --label-column, or of numbers to "
            f"predict with --regression; --label-column {NO_LABELS} takes no labels{of_values}"
        )
    return found


def _labels(table: PathTable, columns: Sequence[int], options: LabelOptions) -> tuple[Sequence[Any], tuple[Labels, Encode]]:
    """Return the cells that hold the label of each row, what the labels mean, and the function that encodes a cell."""
    found = [table.column(k) for k in columns] or [Packed(repeat(None, len(table.rows)))]
    cells = found[0] if len(found) == 1 else Packed(zip(*found, strict=True))
    by = f"{table.describe(columns)}, {table.path}" if columns else str(table.path)
    unasked = not columns and (options.no_labels or options.labels is not None or options.label_from is not None)
    classes = None if unasked else read_classes(options.classes)
    if options.regression and columns:
        return cells, encode_labels(cells, "numbers", classes, names=[table.columns[k] for k in columns], by=by)
    return cells, encode_labels(cells, "values", classes, by=by, sure=options.label_column is not None)


def with_table(inputs: SourceList, path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """Return the inputs with the labels of a table: names are classes, numbers are floats; and with `fields`, columns of it.

    A table whose columns are all fields leaves the labels as they are.

    Raises:
        PrepError: the table cannot be read, or does not fit the inputs.
    """
    sources = inputs.sources

    def is_known(name: str) -> bool:
        name = os.path.normpath(name)
        return any(name in (path, os.path.splitext(path)[0]) for path in (os.path.normpath(one.name) for one in sources))

    table = read_table(path, inputs.root, options.path_column, is_known, _wanted(options, fields))
    if len(table.columns) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    _refuse_split_column(table, inputs.root)
    names: Sequence[str] = Packed(table.names())
    rows = _rows_of(sources, names)
    if len(absent := np.setdiff1d(np.arange(len(names)), rows)):
        similar = SimilarNames((source.name for source in sources), (names[k] for k in absent))
        found = {int(k): similar.find(names[k], path) for k in absent}
        names = Packed(found.get(k) or name for k, name in enumerate(names))
        rows = _rows_of(sources, names)
    repeated = Counter(os.path.normpath(names[k]) for k in _of_equal_checksums(names, len(names)))
    if twice := [name for name, count in repeated.items() if count > 1]:
        raise PrepError(f"{path} names {twice[0]!r} more than once")
    if not (rows >= 0).any():
        raise PrepError(
            f"{path} names no image of {inputs.root}: its first path is {names[0]!r}, but paths are relative to SOURCE, such as "
            f"{sources[0].name if sources else 'photo.jpg'!r}"
        )
    missing = [os.path.normpath(names[k]) for k in np.setdiff1d(np.arange(len(names)), rows)]
    typed = list(map(table.typed, fields))
    stored = [table.columns.index(field.path[0]) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, *stored)]
    columns = _label_columns(table, others, options)
    notes = (*inputs.notes, *_left_out(table, columns, others))
    if fields:
        values = [values for _, values in typed]
        sources = Packed(_with_values(source, row, values) for source, row in zip(sources, rows, strict=True))
        inputs = replace(inputs, sources=sources, fields=_sources_of(fields, typed))
    lost = [Source(name, -1, -1, "missing") for name in missing]
    if not columns:
        if others and not fields and not options.no_labels:
            raise PrepError(
                f"--labels {path}: {', '.join(table.columns[k] for k in others)} hold lists or objects, but labels are numbers or "
                "text; give each number of a label a column of its own, or leave --labels out"
            )
        return replace(inputs, sources=Packed(chain(sources, lost)), notes=notes)
    cells, (meaning, encode) = _labels(table, columns, options)
    relabeled = (relabelled(source, *encode(cells[row] if row >= 0 else None)) for source, row in zip(sources, rows, strict=True))
    sources = Packed(chain(relabeled, (replace(one, label=encode(None)[0]) for one in lost)))
    return replace(inputs, labels=meaning, sources=sources, labelled_by=table.describe(columns), notes=notes)


def _rows_of(sources: Sequence[Source], names: Sequence[str]) -> Array:
    """Return the place of each input in a list of names, int64; -1: it has none. A dict of 10^8 paths would fill the memory."""
    known = _checksums(names, len(names))
    order = np.argsort(known, kind="stable")
    known = known[order]
    wanted = _checksums((source.name for source in sources), len(sources))
    rows = np.full(len(sources), -1, np.int64)
    for k, (source, place) in enumerate(zip(sources, np.searchsorted(known, wanted), strict=True)):
        name = os.path.normpath(source.name)
        while place < len(known) and known[place] == wanted[k]:
            if os.path.normpath(names[order[place]]) == name:
                rows[k] = order[place]
                break
            place += 1
    return rows


def _with_values(source: Source, row: int, columns: Sequence[Sequence[Any]]) -> Source:
    if row < 0:
        return replace(source, problem="not-listed" if source.problem in ("", "no-label") else source.problem)
    return replace(source, values=(*(values[row] for values in columns), *source.values))  # the members of a tar come last


def _refuse_split_column(table: PathTable, root: AnyPath) -> None:
    column = table.find([SPLIT])
    if column is not None and len(splits := sorted(set(map(str, table.column(column))))) > 1:
        command = shlex.join(["fastdata-prep", str(table.path), "--root", str(root), "--split", splits[0]])
        raise PrepError(
            f"--labels {table.path}: its rows belong to {' and '.join(splits)}, which would be mixed; prepare "
            f"each by itself: {command}"
        )
