"""Tables of paths as SOURCE, or as labels for a folder of images (`--labels`)."""

from __future__ import annotations

import os
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import PrepError
from fastdata.sources.fields import Field
from fastdata.sources.folder import list_entries
from fastdata.sources.inputs import FieldSource, Source, SourceList, SplitsError, is_image, look
from fastdata.sources.labels import encode_labels, read_classes, relabelled
from fastdata.sources.notes import not_stored
from fastdata.sources.options import NO_LABELS, LabelOptions
from fastdata.sources.packed import Packed
from fastdata.sources.tables import LABELS, PathTable, find_column, read_table
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.store.manifest import Labels

__all__ = ["list_table", "with_table"]

Rows = Sequence[int] | np.ndarray[Any, np.dtype[Any]]

SPLIT = "split"


def list_table(path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """List the inputs that a table names, with their labels, and with the values of `fields`, which are columns of it.

    Raises:
        PrepError: the table cannot be read, holds several splits, or lacks a column that an option names.
    """
    root = path.parent if options.root is None else to_path(options.root)
    table = _select_split(_read(path, options, fields), options.split)
    look_at_all(root, table.names())
    find = _FileFinder(root, path)
    found = Packed(Source(name, -1, size, problem) for name, size, problem in map(find, table.names()))
    rows = range(len(found))
    inputs = _with_fields(SourceList(root, Labels("none"), found, selected=True), table, rows, fields)
    columns, inputs = _label_columns(inputs, table, fields, options, beside=False)
    inputs = _with_labels(inputs, table, rows, columns, options)
    return replace(inputs, notes=(*inputs.notes, *_repeated(table, inputs.sources)))


def _read(path: AnyPath, options: LabelOptions, fields: Sequence[Field]) -> PathTable:
    wanted = {*(field.path[0] for field in fields), options.label_column or "", *options.regression}
    return read_table(path, options.path_column, wanted)


def _key(name: str) -> str:
    """Return a path in one form, with separators of any system, and composed as Unicode has it."""
    return os.path.normpath(unicodedata.normalize("NFC", name.replace("\\", "/")))


def _ambiguous(table: AnyPath, name: str, files: Sequence[str]) -> PrepError:
    return PrepError(f"{table} names {name!r}, which may be {files[0]} or {files[1]}: write the ending")


class _FileFinder:
    """Finds the file that a name in a table means: that of the name, or the only one that differs in form or ending."""

    def __init__(self, root: AnyPath, table: AnyPath) -> None:
        self._root, self._table = root, table
        self._folders = dict[str, dict[str, list[str]]]()

    def __call__(self, name: str) -> tuple[str, int, str]:
        """Return the name of the file, its size and its problem."""
        size, problem = look(join(self._root, name))
        if problem != "missing":
            return name, size, problem
        key = _key(name)
        found = self._files(name.replace("\\", "/").rpartition("/")[0]).get(key, [])
        found = [file for file in found if _key(file) == key] or [file for file in found if is_image(file)] or found
        if len(found) > 1:
            raise _ambiguous(self._table, name, found)
        return (found[0], *look(join(self._root, found[0]))) if found else (name, size, problem)

    def _files(self, folder: str) -> dict[str, list[str]]:
        """Return the files of a folder by their keys, with and without their endings."""
        if folder not in self._folders:
            path = join(self._root, folder) if folder else self._root
            found = self._folders[folder] = defaultdict[str, list[str]](list)
            for entry in list_entries(path) if path.is_dir() else ():
                file = f"{folder}/{entry.name}" if folder else entry.name
                for key in {_key(file), os.path.splitext(_key(file))[0]}:
                    found[key].append(file)
        return self._folders[folder]


def _with_fields(inputs: SourceList, table: PathTable, rows: Rows, fields: Sequence[Field]) -> SourceList:
    """Return the inputs with the values of their rows; -1: there is none."""
    if not fields:
        return inputs
    typed = list(map(table.typed, fields))

    def with_values(source: Source, row: int) -> Source:
        if row < 0:
            return replace(source, problem="not-listed" if source.problem in ("", "no-label") else source.problem)
        return replace(source, values=(*(values[row] for _, values in typed), *source.values))  # the members of a tar come last

    stored = tuple(FieldSource(column, True, layout=one.layout) for one, (column, _) in zip(fields, typed, strict=True))
    return replace(inputs, sources=Packed(map(with_values, inputs.sources, rows)), fields=stored)


def _with_labels(inputs: SourceList, table: PathTable, rows: Rows, columns: Sequence[int], options: LabelOptions) -> SourceList:
    """Return the inputs with the labels of their rows; -1: there is none."""
    cells: Sequence[Any] = [None] * len(table.rows)
    if columns:
        found = list(map(table.column, columns))
        cells = found[0] if len(found) == 1 else Packed(zip(*found, strict=True))
    by = f"{table.describe(columns)}, {table.path}" if columns else str(table.path)
    unasked = not columns and (options.no_labels or options.labels is not None or options.label_from is not None)
    classes = None if unasked else read_classes(options.classes)
    if options.regression and columns:
        labels, encode = encode_labels(cells, "numbers", classes, names=[table.columns[k] for k in columns], by=by)
    else:
        labels, encode = encode_labels(cells, "values", classes, by=by, sure=options.label_column is not None)
    pairs = zip(inputs.sources, rows, strict=True)
    sources = Packed(relabelled(source, *encode(cells[row] if row >= 0 else None)) for source, row in pairs)
    return replace(inputs, labels=labels, sources=sources, labelled_by=table.describe(columns))


def _repeated(table: PathTable, sources: Sequence[Source]) -> Iterator[str]:
    """Yield a note on the files that occur more than once. Raise PrepError if one has different labels."""
    encoded = (os.path.normpath(source.name).encode("utf-8", "surrogatepass") for source in sources)
    sums = np.fromiter(map(xxhash.xxh3_128_digest, encoded), "S16", len(sources))  # a dict would fill the memory
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[which] != np.arange(len(sums))).tolist()
    for k in again:
        one, before = sources[k], sources[first[which[k]]]
        if one.problem != before.problem or (not one.problem and one.label != before.label):
            raise PrepError(f"{table.path} names {one.name!r} more than once, with different labels; keep the row that is right")
    if again:
        rows = f"{len(again)} rows of {table.path.name} repeat" if len(again) > 1 else f"1 row of {table.path.name} repeats"
        yield f"{rows} a path, such as {sources[again[0]].name}; each row is a sample"


def _select_split(table: PathTable, wanted: str | None) -> PathTable:
    """Keep the rows of one split. If none is named, the table must have only one."""
    column = find_column(table.columns, [SPLIT])
    if column is None and wanted is None:
        return table
    splits = Packed(map(str, table.column(table.index(SPLIT, f"--split {wanted}") if column is None else column)))
    names = sorted(set(splits))
    if wanted is None:
        if len(names) > 1:
            odd = next((f"rows of split {name!r}" for name in names if not name or "/" in name), "")
            raise SplitsError(table.path, {name: str(table.path) for name in names}, column=True, beside=odd)
        return table
    if wanted not in names:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(names)}")
    return replace(table, rows=Packed(row for row, split in zip(table.rows, splits, strict=True) if split == wanted))


def _label_columns(
    inputs: SourceList, table: PathTable, fields: Sequence[Field], options: LabelOptions, *, beside: bool
) -> tuple[list[int], SourceList]:
    """Return the columns of the labels, and the inputs with a note on those that are not stored.

    The columns are those that the caller names; else the one with a usual name; else the only one. beside: the table is that of
    --labels.
    """
    stored = [table.columns.index(field.path[0]) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, find_column(table.columns, [SPLIT]), *stored)]
    if options.no_labels or options.label_from is not None or (not beside and options.labels is not None):
        found = []
    elif options.regression:
        found = [table.index(name, f"--regression {name}") for name in options.regression]
    elif options.label_column is not None:
        found = [table.index(options.label_column, f"--label-column {options.label_column}")]
    else:
        usual = [k for k in others if table.columns[k].lower() in LABELS]
        found = usual if len(usual) == 1 else [k for k in others if table.may_be_labels(k)]
        if len(found) > 1:
            raise PrepError(
                f"{table.path}: its labels may be {', '.join(table.columns[k] for k in found)}: name the column of classes with "
                f"--label-column, or of numbers to predict with --regression; --label-column {NO_LABELS} takes no labels"
            )
    left = [table.columns[k] or "one without a name" for k in others if k not in found]
    note = (not_stored(left, f"paths come from column {table.columns[table.paths]}"),) if left else ()
    return found, replace(inputs, notes=(*inputs.notes, *note))


def with_table(inputs: SourceList, path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """Return the inputs with the labels of a table: names are classes, numbers are floats; and with `fields`, columns of it.

    A table whose columns are all fields leaves the labels as they are.

    Raises:
        PrepError: the table cannot be read, or does not fit the inputs.
    """
    table = _read(path, options, fields)
    column = find_column(table.columns, [SPLIT])
    if column is not None and len(splits := sorted(set(map(str, table.column(column))))) > 1:
        command = shlex.join(["fastdata-prep", str(path), "--root", str(inputs.root), "--split", splits[0]])
        raise PrepError(
            f"--labels {path}: its rows belong to {' and '.join(splits)}, which would be mixed; prepare each by itself: {command}"
        )
    rows = _rows_of(inputs.sources, table)
    known = {*rows}
    lost = [Source(os.path.normpath(name), -1, -1, "missing") for row, name in enumerate(table.names()) if row not in known]
    inputs = _with_fields(inputs, table, rows, fields)
    inputs = replace(inputs, sources=Packed(chain(inputs.sources, lost)))
    columns, inputs = _label_columns(inputs, table, fields, options, beside=True)
    if not columns and not fields and not options.no_labels:
        raise PrepError(f"--labels {path}: none of its columns {', '.join(table.columns)} holds labels, which are numbers or text")
    return _with_labels(inputs, table, [*rows, *(-1 for _ in lost)], columns, options) if columns else inputs


def _rows_of(sources: Iterable[Source], table: PathTable) -> list[int]:
    """Return the row of each input; -1: it has none. A row means the input of its name, or the only one without its ending."""
    by_key = dict[str, int]()
    for row, name in enumerate(table.names()):
        if by_key.setdefault(_key(name), row) != row:
            raise PrepError(f"{table.path} names {os.path.normpath(name)!r} more than once")
    names = [source.name for source in sources]
    rows = [by_key.get(_key(name), -1) for name in names]
    exact, by_stem = {*rows}, dict[int, str]()
    for k, name in enumerate(names):
        row = by_key.get(os.path.splitext(_key(name))[0], -1)
        if rows[k] >= 0 or row < 0 or row in exact:
            continue
        if row in by_stem:
            raise _ambiguous(table.path, str(table.rows[row][table.paths]), [by_stem[row], name])
        by_stem[row] = name
        rows[k] = row
    if all(row < 0 for row in rows):
        raise PrepError(
            f"{table.path} names none of the inputs: its first path is {next(table.names())!r}, but paths are relative to SOURCE, "
            f"such as {names[0] if names else 'photo.jpg'!r}"
        )
    return rows
