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
from fastdata.sources.tables import INDEX, LABELS, PathTable, find_column, read_table
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
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
    table = read_table(path, options.path_column, lambda name: not files.look(name)[2], _wanted(options, fields))
    split = find_column(table.columns, [SPLIT]) if table.named else None
    if split is None and options.split is not None:
        split = table.index(SPLIT, f"--split {options.split}")
    if split is not None:
        table = _select_split(table, split, options.split)
    look_at_all(root, table.names())
    found = Packed(Source(name, -1, size, problem) for name, size, problem in map(files.look, table.names()))
    rows = np.arange(len(found))
    inputs = _with_fields(SourceList(root, Labels("none"), found, selected=True), table, rows, fields)
    columns, inputs = _label_columns(inputs, table, fields, options, split, beside=False)
    inputs = _with_labels(inputs, table, rows, columns, options)
    return replace(inputs, notes=(*inputs.notes, *_repeated(table, inputs.sources)))


class _Files:
    """Looks at the files that a table names, or means where there is none of that name."""

    def __init__(self, root: AnyPath, table: AnyPath) -> None:
        self._root, self._table = root, table
        self._folders = dict[str, _SimilarNames]()

    def look(self, name: str) -> tuple[str, int, str]:
        """Return the name of the file, its size and its problem."""
        size, problem = look(join(self._root, name))
        if problem != "missing":
            return name, size, problem
        folder = name.replace("\\", "/").rpartition("/")[0]
        if folder not in self._folders:
            path = join(self._root, folder) if folder else self._root
            names = [entry.name for entry in list_entries(path)] if path.is_dir() else []
            self._folders[folder] = _SimilarNames(f"{folder}/{one}" if folder else one for one in names)
        similar = self._folders[folder].find(name, self._table)
        return (similar, *look(join(self._root, similar))) if similar else (name, size, problem)


class _SimilarNames:
    """Files that names of a table may mean: with Windows' separators, in another form of Unicode, or without their ending."""

    def __init__(self, files: Iterable[str], wanted: Iterable[str] | None = None) -> None:
        keys = None if wanted is None else set(map(self._key, wanted))
        self._files = defaultdict[str, list[str]](list)
        for file in files:
            key = self._key(file)
            for one in (key, os.path.splitext(key)[0]):
                if keys is None or one in keys:
                    self._files[one].append(file)

    @staticmethod
    def _key(name: str) -> str:
        return os.path.normpath(unicodedata.normalize("NFC", name.replace("\\", "/")))

    def find(self, name: str, where: AnyPath) -> str:
        """Return the file that a name means; "" for none. where: the table, for messages.

        Raises:
            PrepError: there are several.
        """
        key = self._key(name)
        found = self._files.get(key, [])
        found = [file for file in found if self._key(file) == key] or [file for file in found if is_image(file)] or found
        if len(found) > 1:
            raise PrepError(f"{where} names {name!r}, which may be {found[0]} or {found[1]}: write the ending")
        return found[0] if found else ""


def _wanted(options: LabelOptions, fields: Sequence[Field]) -> set[str]:
    return {*(field.path[0] for field in fields), options.label_column or "", *options.regression}


def _with_fields(inputs: SourceList, table: PathTable, rows: Array, fields: Sequence[Field]) -> SourceList:
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


def _with_labels(inputs: SourceList, table: PathTable, rows: Array, columns: Sequence[int], options: LabelOptions) -> SourceList:
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
    first: dict[str, Source] = {}
    again = []
    for k in _equal_names((source.name for source in sources), len(sources)):
        one = sources[k]
        before = first.setdefault(os.path.normpath(one.name), one)
        if one.problem != before.problem or (not one.problem and one.label != before.label):
            raise PrepError(f"{table.path} names {one.name!r} more than once, with different labels; keep the row that is right")
        if one is not before:
            again.append(one.name)
    if again:
        rows = f"{len(again)} rows of {table.path.name} repeat" if len(again) > 1 else f"1 row of {table.path.name} repeats"
        yield f"{rows} a path, such as {again[0]}; each row is a sample"


def _checksums(names: Iterable[str], count: int) -> Array:
    """Return a checksum of 128 bits of the normal form of each path. A dict of 10^8 paths would fill the memory."""
    encoded = (os.path.normpath(name).encode("utf-8", "surrogatepass") for name in names)
    return np.fromiter(map(xxhash.xxh3_128_digest, encoded), "S16", count)


def _equal_names(names: Iterable[str], count: int) -> list[int]:
    """Return the places of the names that equal another one, in order."""
    sums = _checksums(names, count)
    ordered = np.sort(sums)
    several = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    places: list[int] = np.flatnonzero(np.isin(sums, several)).tolist() if len(several) else []
    return places


def _select_split(table: PathTable, column: int, wanted: str | None) -> PathTable:
    """Keep the rows of one split, without its column. If none is named, the table must have only one."""
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


def _label_columns(
    inputs: SourceList, table: PathTable, fields: Sequence[Field], options: LabelOptions, split: int | None, *, beside: bool
) -> tuple[list[int], SourceList]:
    """Return the columns of the labels, and the inputs with a note on those that are not stored.

    The columns are those that the caller names; else the one with a usual name; else the only one. beside: the table is that of
    --labels.
    """
    stored = [table.columns.index(field.path[0]) for field in fields]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, split, *stored)]
    plain = [k for k in others if table.is_plain(k)]
    usual = [k for k in others if table.named and table.columns[k].lower() in LABELS]
    if options.no_labels or options.label_from is not None or (not beside and options.labels is not None):
        found = []
    elif options.regression:
        found = [table.index(name, f"--regression {name}") for name in options.regression]
    elif options.label_column is not None:
        found = [table.index(options.label_column, f"--label-column {options.label_column}")]
    else:
        found = usual if len(usual) == 1 else [k for k in plain if not INDEX.fullmatch(table.columns[k])] or plain
        if len(found) > 1:
            which = ", ".join(table.columns[k] for k in found) if table.named else f"{len(found)} columns without a name"
            first = "" if table.named else "give the table a first line, such as path,label, and "
            raise PrepError(
                f"{table.path}: its labels may be {which}: {first}name the column of classes with --label-column, or of numbers "
                f"to predict with --regression; --label-column {NO_LABELS} takes no labels; a table without paths is not "
                "prepared: TableDataset reads it"
            )
    if beside and not found and others and not fields and not options.no_labels:
        raise PrepError(
            f"--labels {table.path}: {', '.join(table.columns[k] for k in others)} hold lists or objects, but labels are numbers "
            "or text; give each number of a label a column of its own, or leave --labels out"
        )
    left = [table.columns[k] or "one without a name" for k in others if k not in found]
    paths = table.columns[table.paths] or "without a name"
    note = (not_stored(left, f"paths come from {'column ' if table.named else ''}{paths}"),) if left else ()
    return found, replace(inputs, notes=(*inputs.notes, *note))


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

    table = read_table(path, options.path_column, is_known, _wanted(options, fields))
    if len(table.columns) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    _refuse_split_column(table, inputs.root)
    names: Sequence[str] = Packed(table.names())
    rows = _rows_of(sources, names)
    if len(absent := np.setdiff1d(np.arange(len(names)), rows)):
        similar = _SimilarNames((source.name for source in sources), (names[k] for k in absent))
        found = {int(k): similar.find(names[k], path) for k in absent}
        names = Packed(found.get(k) or name for k, name in enumerate(names))
        rows = _rows_of(sources, names)
    if equal := _equal_names(names, len(names)):
        raise PrepError(f"{path} names {os.path.normpath(names[equal[0]])!r} more than once")
    if not (rows >= 0).any():
        raise PrepError(
            f"{path} names no image of {inputs.root}: its first path is {names[0]!r}, but paths are relative to SOURCE, such as "
            f"{sources[0].name if sources else 'photo.jpg'!r}"
        )
    missing = [os.path.normpath(names[k]) for k in np.setdiff1d(np.arange(len(names)), rows)]
    lost = (Source(name, -1, -1, "missing") for name in missing)
    inputs = _with_fields(inputs, table, rows, fields)
    inputs = replace(inputs, sources=Packed(chain(inputs.sources, lost)))
    columns, inputs = _label_columns(inputs, table, fields, options, None, beside=True)
    return _with_labels(inputs, table, np.append(rows, np.full(len(missing), -1)), columns, options) if columns else inputs


def _rows_of(sources: Sequence[Source], names: Sequence[str]) -> Array:
    """Return the place of each input in a list of names, int64; -1: it has none."""
    known, first = np.unique(_checksums(names, len(names)), return_index=True)
    wanted = _checksums((source.name for source in sources), len(sources))
    places = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[places] == wanted, first[places], -1)


def _refuse_split_column(table: PathTable, root: AnyPath) -> None:
    column = find_column(table.columns, [SPLIT])
    if column is not None and len(splits := sorted(set(map(str, table.column(column))))) > 1:
        command = shlex.join(["fastdata-prep", str(table.path), "--root", str(root), "--split", splits[0]])
        raise PrepError(
            f"--labels {table.path}: its rows belong to {' and '.join(splits)}, which would be mixed; prepare "
            f"each by itself: {command}"
        )
