"""Tables of paths and labels: as SOURCE, or as labels for a folder of images (`--labels`)."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath, join, look_at_all, to_path
from fastdata.sources.fields import Field
from fastdata.sources.inputs import Label, Source, SourceList, fits_float, have_commas, is_number, look, splits_error
from fastdata.sources.notes import not_stored, refuse_captions
from fastdata.sources.options import NO_LABELS, LabelOptions
from fastdata.sources.packed import Packed, PackedInputs
from fastdata.sources.reasons import lacks_ending
from fastdata.sources.table_file import PathTable, read_table
from fastdata.store.format import Labels

__all__ = ["class_names", "list_table", "relabelled", "with_table"]

Array = np.ndarray[Any, np.dtype[Any]]

LABELS = ("label", "labels", "class", "class_name", "category")
SPLIT = "split"


def list_table(path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """List the inputs that a table names, with their labels, and with the values of `fields`, which are columns of it.

    Raises:
        PrepError: the table cannot be read, holds several splits, or lacks a column that an option names.
    """
    root = path.parent if options.root is None else to_path(options.root)
    table = read_table(path, root, fields=fields)
    split = table.find([SPLIT]) if table.named else None
    if split is None and options.split is not None:
        split = table.index(SPLIT, f"--split {options.split}")
    if split is not None:
        table = _select_split(table, split, options.split)
    typed = list(map(table.typed, fields))
    stored = [table.columns.index(field.name) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, split, *stored)]
    columns = [] if options.labels is not None else _label_columns(table, others, options)
    labels: Sequence[Label]
    if not columns:
        meaning, labels = Labels("none"), Packed(repeat(-1, len(table.rows)))
    elif len(columns) == 1 and not (options.label_column and _are_fractions(table.column(columns[0]))):
        meaning, labels = _classes(table, columns[0], sure=bool(options.label_column))
    else:
        meaning, labels = _vectors(table, columns)
    values = zip(*(values for _, values in typed), strict=True) if typed else repeat((), len(table.rows))
    look_at_all(root, table.names())
    sources = PackedInputs(
        Source(name, label, *look(join(root, name)), values=own)
        for name, label, own in zip(table.names(), labels, values, strict=True)
    )
    notes = (*_left_out(table, columns, others), *_repeated(table, columns, labels))
    found = tuple(column for column, _ in typed)
    return SourceList(root, meaning, sources, labelled_by=table.describe(columns), notes=notes, columns=found)


def _repeated(table: PathTable, columns: Sequence[int], labels: Sequence[Label]) -> tuple[str, ...]:
    """Return a note on the paths that occur more than once, or nothing.

    Raises:
        PrepError: a path occurs with different labels.
    """
    first: dict[str, int] = {}
    again = []
    for k in _rows_of_equal_checksums(table):
        name = table.rows[k][table.paths]
        before = first.setdefault(os.path.normpath(name), k)
        if labels[k] != labels[before]:
            one, other = (", ".join(table.column(column)[at] for column in columns) for at in (before, k))
            raise PrepError(
                f"{table.path} names {name!r} more than once, with different labels: {one!r} and {other!r}; keep the "
                "row that is right"
            )
        if before != k:
            again.append(name)
    label = " with the same label" if columns else ""
    rows = f"{len(again)} rows of {table.path.name} repeat" if len(again) > 1 else f"1 row of {table.path.name} repeats"
    return (f"{rows} a path{label}, such as {again[0]}; each row is a sample",) if again else ()


def _rows_of_equal_checksums(table: PathTable) -> list[int]:
    """Return the rows whose paths may be equal to that of another one, in order."""
    sums = _checksums(table.names(), len(table.rows))
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
    splits = table.column(column)
    names = sorted(set(splits))
    if wanted is None:
        if len(names) > 1:
            raise splits_error(table.path, {name: str(table.path) for name in names}, column=True)
        return table
    if wanted not in names:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(names)}")
    return replace(table, rows=Packed(row for row, split in zip(table.rows, splits, strict=True) if split == wanted))


def _label_columns(table: PathTable, others: Sequence[int], options: LabelOptions) -> list[int]:
    """Return the columns that the caller names; else the one with a usual name; else all others that have a name, or all."""
    if options.no_labels or options.label_from is not None:
        return []
    if NO_LABELS in options.label_column and NO_LABELS not in table.columns:
        raise PrepError(
            f"--label-column {' and '.join(options.label_column)}: {NO_LABELS} means no labels: give it alone, or leave it out "
            f"({table.path} has no column of this name)"
        )
    if options.label_column:
        return [table.index(name, f"--label-column {name}") for name in options.label_column]
    plain = [k for k in others if table.is_plain(k)]
    usual = [k for k in plain if table.named and table.columns[k].lower() in LABELS]
    return usual if len(usual) == 1 else [k for k in plain if table.columns[k]] or plain


def _classes(table: PathTable, column: int, *, sure: bool) -> tuple[Labels, Sequence[Label]]:
    values = table.column(column)
    if not sure:
        refuse_captions(values, f"{table.columns[column]} of {table.path}")
        if have_commas(values):
            raise PrepError(
                f"{table.path}: the labels are numbers with a comma, such as {values[0]!r}: write them as 1.5 or 1234567; if they "
                f"are names of classes, say so: --label-column {table.columns[column] or 'NAME'}"
            )
    _refuse_empty(table, ((value,) for value in values))
    names = class_names(str(table.path), set(values))
    number = {name: k for k, name in enumerate(names)}
    return Labels("class", names), Packed(number[value] for value in values)


def _vectors(table: PathTable, columns: Sequence[int]) -> tuple[Labels, Sequence[Label]]:
    names = tuple(table.columns[k] if table.named else f"label{n}" for n, k in enumerate(columns, 1))
    texts = [table.column(k) for k in columns]
    cells = Packed(zip(*texts, strict=True))
    for row, values in zip(table.rows, cells, strict=True):
        if not all(is_number(value) for value in values if value):
            first = "give the table a first line, such as path,label, and " if not table.named else ""
            of_values = "" if table.holds_paths() else "; a table without paths is not prepared: TableDataset reads it"
            raise PrepError(
                f"{table.path}, row of {row[table.paths]!r}: {', '.join(values)} are not all numbers; {first}name the column of "
                f"labels with --label-column{of_values}"
            )
    _refuse_empty(table, cells)
    labels = Packed[tuple[float, ...]](tuple(map(float, values)) for values in cells)
    if bad := [k for k, label in enumerate(labels) if not fits_float(*label)]:
        raise PrepError(
            f"{table.path}, row of {table.rows[bad[0]][table.paths]!r}: the label {', '.join(cells[bad[0]])} is not finite, or too "
            f"large for float32, {_in_all(bad)}; correct these rows, or leave them out"
        )
    return Labels("vector", names), labels


def _refuse_empty(table: PathTable, cells: Iterable[Sequence[str]]) -> None:
    if empty := [k for k, values in enumerate(cells) if "" in values]:
        first = table.rows[empty[0]][table.paths]
        raise PrepError(f"{table.path}, row of {first!r}: its label is empty, {_in_all(empty)}; fill these rows, or leave them out")


def _in_all(rows: Sequence[int]) -> str:
    return f"as in {len(rows)} rows in all" if len(rows) > 1 else "in this row only"


def class_names(what: str, names: set[str]) -> tuple[str, ...]:
    """Sort the names of classes, as numbers if all are whole numbers: so classes 0 to n-1 keep their numbers. what: for errors."""
    if _are_fractions(names):
        odd = min(text for text in names if not _are_whole([text]))
        raise PrepError(
            f"{what}: the labels are numbers that are not all whole, such as {odd!r}; for float targets name their "
            "columns with --label-column, for classes write whole numbers or names"
        )
    return tuple(sorted(names, key=int if _are_whole(names) else str))


def _are_whole(texts: Collection[str]) -> bool:
    return all(text.isascii() and text.isdigit() for text in texts)


def _are_fractions(texts: Collection[str]) -> bool:
    """Return whether all are numbers, but not all of them whole and positive."""
    return not _are_whole(texts) and all(map(is_number, texts))


def with_table(inputs: SourceList, path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """Return the inputs with the labels of a table: names are classes, numbers are floats; and with `fields`, columns of it.

    A table whose columns are all fields leaves the labels as they are.

    Raises:
        PrepError: the table cannot be read, or does not fit the inputs.
    """
    sources = inputs.sources
    table = read_table(path, inputs.root, lambda name: any(os.path.normpath(one.name) == name for one in sources), fields)
    if len(table.columns) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    _refuse_split_column(table, inputs.root)
    repeated = Counter(os.path.normpath(table.rows[k][table.paths]) for k in _rows_of_equal_checksums(table))
    if twice := [name for name, count in repeated.items() if count > 1]:
        raise PrepError(f"{path} names {twice[0]!r} more than once")
    rows = _rows_of(sources, table)
    is_missing = np.ones(len(table.rows), bool)
    is_missing[rows[rows >= 0]] = False
    if is_missing.any():
        first = os.path.normpath(table.rows[int(is_missing.argmax())][table.paths])
        raise PrepError(
            f"{path} names {is_missing.sum()} images that are not in {inputs.root}, the first {first!r}; "
            f"paths are relative to SOURCE, such as {sources[0].name if sources else 'photo.jpg'!r}"
            f"{lacks_ending(inputs.root, first)}"
        )
    typed = list(map(table.typed, fields))
    stored = [table.columns.index(field.name) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, *stored)]
    columns = _label_columns(table, others, options)
    notes = (*inputs.notes, *_left_out(table, columns, others))
    if fields:
        cells = [values for _, values in typed]
        sources = PackedInputs(_with_values(source, row, cells) for source, row in zip(sources, rows, strict=True))
        inputs = replace(inputs, sources=sources, columns=tuple(column for column, _ in typed))
    if not columns:
        if others and not fields and not options.no_labels:
            raise PrepError(
                f"--labels {path}: {', '.join(table.columns[k] for k in others)} hold lists or objects, but labels are numbers or "
                "text; give each number of a label a column of its own, or leave --labels out"
            )
        return replace(inputs, notes=notes)
    if len(columns) == 1 and not any(map(is_number, table.column(columns[0]))):
        meaning, labels = _classes(table, columns[0], sure=bool(options.label_column))
    else:
        meaning, labels = _vectors(table, columns)
    unlabelled = -1 if meaning.kind == "class" else (float("nan"),) * len(columns)
    sources = PackedInputs(
        relabelled(source, labels[row] if row >= 0 else unlabelled, has_label=row >= 0)
        for source, row in zip(sources, rows, strict=True)
    )
    return replace(inputs, labels=meaning, sources=sources, labelled_by=table.describe(columns), notes=notes)


def _rows_of(sources: Sequence[Source], table: PathTable) -> Array:
    """Return the row of each input in a table that names none twice, int64; -1: it has none. A dict of 10^8 paths would fill the
    memory."""
    own = _checksums(table.names(), len(table.rows))
    order = np.argsort(own, kind="stable")
    own = own[order]
    wanted = _checksums((source.name for source in sources), len(sources))
    rows = np.full(len(sources), -1, np.int64)
    for k, (source, place) in enumerate(zip(sources, np.searchsorted(own, wanted), strict=True)):
        name = os.path.normpath(source.name)
        while place < len(own) and own[place] == wanted[k]:
            if os.path.normpath(table.rows[order[place]][table.paths]) == name:
                rows[k] = order[place]
                break
            place += 1
    return rows


def _with_values(source: Source, row: int, columns: Sequence[Sequence[Any]]) -> Source:
    if row < 0:
        return replace(source, problem="not-listed" if source.problem in ("", "no-label") else source.problem)
    return replace(source, values=tuple(values[row] for values in columns))


def _refuse_split_column(table: PathTable, root: AnyPath) -> None:
    column = table.find([SPLIT])
    if column is not None and len(splits := sorted(set(table.column(column)))) > 1:
        command = shlex.join(["fastdata-prep", str(table.path), "--root", str(root), "--split", splits[0]])
        raise PrepError(
            f"--labels {table.path}: its rows belong to {' and '.join(splits)}, which would be mixed; prepare "
            f"each by itself: {command}"
        )


def relabelled(source: Source, label: Label, *, has_label: bool) -> Source:
    """Return an input with another label. Without one it cannot be used, unless it already has another problem."""
    problem = source.problem if source.problem not in ("", "no-label") else "" if has_label else "no-label"
    return replace(source, label=label, problem=problem)
