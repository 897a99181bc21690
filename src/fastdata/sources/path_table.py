"""CSV and TSV files of paths and labels: as SOURCE, or as labels for a folder of images (`--labels`)."""

from __future__ import annotations

import csv
import os
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.delimiters import delimiter_of
from fastdata.sources.fields import parse_field
from fastdata.sources.inputs import Label, Source, SourceList, fits_float, is_image, is_number, look, splits_error
from fastdata.sources.notes import not_stored, refuse_captions
from fastdata.sources.options import LabelOptions
from fastdata.sources.reasons import lacks_ending
from fastdata.store.format import Labels
from fastdata.words import number_of

__all__ = ["class_names", "is_path_table", "list_table", "relabelled", "with_table"]

PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "class", "class_name", "category")
SPLIT = "split"


@dataclass(frozen=True)
class _Table:
    """Rows of text.

    Attributes:
        root: the folder that the paths are relative to.
        columns: their names; "column 1" and so on if the table has no header.
        named: whether the table has a header.
    """

    path: Path
    root: Path
    columns: tuple[str, ...]
    named: bool
    rows: list[list[str]]

    def find(self, names: Sequence[str]) -> int | None:
        """Return the index of the first column with one of these names, in any case."""
        lower = [column.lower() for column in self.columns]
        return next((lower.index(name) for name in names if name in lower), None)

    @property
    def paths(self) -> int:
        """The index of the column of paths."""
        return self.find(PATHS) or 0

    def column(self, index: int) -> list[str]:
        return [_checked(self.path, row[index].strip()) for row in self.rows]

    def holds_paths(self) -> bool:
        """Return whether the table seems to hold paths, judged by its header and first row."""
        first = self.rows[0][self.paths]
        return self.find(PATHS) is not None or is_image(first) or os.path.isfile(self.root / first)

    def index(self, name: str, option: str) -> int:
        """Return the index of the column that an option names."""
        if not self.named:
            raise PrepError(f"{option} needs names of columns: give {self.path} a first line, such as path,label,split")
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns.index(name)

    def describe(self, indices: Sequence[int]) -> str:
        """Name columns as the source of the labels; "" for none."""
        columns = "columns " if len(indices) > 1 else "column "
        names = " and ".join(self.columns[k] for k in indices)
        return f"{columns if self.named else ''}{names} of {self.path.name}" if indices else ""


def is_path_table(path: Path) -> bool:
    """Return whether a source is a file of paths."""
    return path.is_file() and path.suffix.lower() in (".csv", ".tsv")


def _read(path: Path, root: Path, known: Collection[str] = ()) -> _Table:
    """Read a table, whose rows must all have one length. A first line that begins with a `known` normal path is not a header."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = file.readlines()
        delimiter = "\t" if path.suffix.lower() == ".tsv" else delimiter_of(lambda: lines)
        rows = list(filter(None, csv.reader(lines, delimiter=delimiter)))
    except (OSError, csv.Error) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not rows:
        raise PrepError(f"{path} is empty; it needs rows of path,label")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, the first row has {len(rows[0])}")
    if os.path.normpath(rows[0][0]) in known or not _is_header(rows, root):
        return _Table(path, root, tuple(f"column {k}" for k in range(1, len(rows[0]) + 1)), False, rows)
    columns = tuple(_checked(path, cell.strip()) for cell in rows[0])
    if len(rows) == 1:
        raise PrepError(f"{path} has no rows: its only line, {','.join(columns):.60}, names columns")
    return _Table(path, root, columns, True, rows[1:])


def _checked(path: Path, cell: str) -> str:
    """Return a cell that is used as a name, which must be UTF-8. Paths may hold any bytes."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        text = cell.encode(errors="surrogateescape").decode("latin-1")
        command = shlex.join(["iconv", "-f", "LATIN1", "-t", "UTF-8", str(path)])
        raise PrepError(
            f"{path} is not UTF-8: as Latin-1, it contains {text!r:.60}; if that is right, convert it: {command} > utf8.csv"
        )
    return cell


def _is_header(rows: Sequence[Sequence[str]], root: Path) -> bool:
    """Return whether the first row is a header: unlike the next row, it does not begin with a path."""
    first, ending = rows[0][0], os.path.splitext(rows[0][0])[1].lower()
    as_the_next = ending != "" and len(rows) > 1 and ending == os.path.splitext(rows[1][0])[1].lower()
    return not (is_image(first) or as_the_next or os.path.isfile(root / first))


def list_table(path: Path, options: LabelOptions, fields: Sequence[str] = ()) -> SourceList:
    """List the inputs that a table names, with their labels, and with the values of the columns that `fields` names.

    Raises:
        PrepError: the table cannot be read, holds several splits, or lacks a column that an option names.
    """
    root = path.parent if options.root is None else Path(options.root)
    table = _read(path, root)
    split = table.find([SPLIT]) if table.named else None
    if split is None and options.split is not None:
        split = table.index(SPLIT, f"--split {options.split}")
    if split is not None:
        table = _select_split(table, split, options.split)
    chosen = [(table.index(field.name, f"--fields {field.name}"), field) for field in map(parse_field, fields)]
    typed = [field.typed(table.column(k), lambda row: f"{path}, row of {table.rows[row][table.paths]!r}") for k, field in chosen]
    stored = [k for k, _ in chosen]
    others = [k for k in range(len(table.columns)) if k not in (table.paths, split, *stored)]
    columns = [] if options.labels is not None else _label_columns(table, others, options)
    if not columns:
        meaning, labels = Labels("none"), list[Label]([-1]) * len(table.rows)
    elif len(columns) == 1 and not (options.label_column and _are_fractions(table.column(columns[0]))):
        meaning, labels = _classes(table, columns[0], sure=bool(options.label_column))
    else:
        meaning, labels = _vectors(table, columns)
    names = [row[table.paths] for row in table.rows]
    values = list(zip(*(values for _, values in typed), strict=True)) or [()] * len(names)
    sources = [Source(name, label, *look(root / name), values=own) for name, label, own in zip(names, labels, values, strict=True)]
    notes = (*_left_out(table, columns, others), *_repeated(table, columns, labels))
    found = tuple(column for column, _ in typed)
    return SourceList(root, meaning, sources, labelled_by=table.describe(columns), notes=notes, columns=found)


def _repeated(table: _Table, columns: Sequence[int], labels: Sequence[Label]) -> tuple[str, ...]:
    """Return a note on the paths that occur more than once, or nothing.

    Raises:
        PrepError: a path occurs with different labels.
    """
    first: dict[str, int] = {}
    again = []
    for k, row in enumerate(table.rows):
        before = first.setdefault(os.path.normpath(row[table.paths]), k)
        if labels[k] != labels[before]:
            one, other = (", ".join(table.rows[at][column].strip() for column in columns) for at in (before, k))
            raise PrepError(
                f"{table.path} names {row[table.paths]!r} more than once, with different labels: {one!r} and {other!r}; keep the "
                "row that is right"
            )
        if before != k:
            again.append(row[table.paths])
    label = " with the same label" if columns else ""
    rows = f"{len(again)} rows of {table.path.name} repeat" if len(again) > 1 else f"1 row of {table.path.name} repeats"
    return (f"{rows} a path{label}, such as {again[0]}; each row is a sample",) if again else ()


def _left_out(table: _Table, labels: Sequence[int], others: Sequence[int]) -> tuple[str, ...]:
    left = [table.columns[k] or "one without a name" for k in others if k not in labels]
    paths = table.columns[table.paths] or "without a name"
    return (not_stored(left, f"paths come from {'column ' if table.named else ''}{paths}"),) if left else ()


def _select_split(table: _Table, column: int, wanted: str | None) -> _Table:
    """Keep the rows of one split. If none is named, the table must have only one."""
    splits = table.column(column)
    names = sorted(set(splits))
    if wanted is None:
        if len(names) > 1:
            raise splits_error(table.path, {name: str(table.path) for name in names}, column=True)
        return table
    if wanted not in names:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(names)}")
    return replace(table, rows=[row for row, split in zip(table.rows, splits, strict=True) if split == wanted])


def _label_columns(table: _Table, others: Sequence[int], options: LabelOptions) -> list[int]:
    """Return the columns that the caller names; else the one with a usual name; else all others that have a name, or all."""
    if options.no_labels or options.label_from is not None:
        return []
    if options.label_column:
        return [table.index(name, f"--label-column {name}") for name in options.label_column]
    usual = [k for k in others if table.named and table.columns[k].lower() in LABELS]
    return usual if len(usual) == 1 else [k for k in others if table.columns[k]] or list(others)


def _classes(table: _Table, column: int, *, sure: bool) -> tuple[Labels, list[Label]]:
    values = table.column(column)
    if not sure:
        refuse_captions(values, f"{table.columns[column]} of {table.path}")
    _refuse_empty(table, [(value,) for value in values])
    names = class_names(str(table.path), set(values))
    number = {name: k for k, name in enumerate(names)}
    return Labels("class", names), [number[value] for value in values]


def _vectors(table: _Table, columns: Sequence[int]) -> tuple[Labels, list[Label]]:
    names = tuple(table.columns[k] if table.named else f"label{n}" for n, k in enumerate(columns, 1))
    texts = [table.column(k) for k in columns]
    cells = [tuple(column[k] for column in texts) for k in range(len(table.rows))]
    for row, values in zip(table.rows, cells, strict=True):
        if not all(is_number(value) for value in values if value):
            first = "give the table a first line, such as path,label, and " if not table.named else ""
            of_values = "" if table.holds_paths() else "; for a table without paths, name the column to predict: --target COLUMN"
            raise PrepError(
                f"{table.path}, row of {row[table.paths]!r}: {', '.join(values)} are not all numbers; {first}name the column of "
                f"labels with --label-column{of_values}"
            )
    _refuse_empty(table, cells)
    labels = [tuple(map(float, values)) for values in cells]
    if bad := [k for k, label in enumerate(labels) if not fits_float(*label)]:
        raise PrepError(
            f"{table.path}, row of {table.rows[bad[0]][table.paths]!r}: the label {', '.join(cells[bad[0]])} is not finite, or too "
            f"large for float32, {_in_all(bad)}; correct these rows, or leave them out"
        )
    return Labels("vector", names), list(labels)


def _refuse_empty(table: _Table, cells: Sequence[Sequence[str]]) -> None:
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


def with_table(inputs: SourceList, path: Path, options: LabelOptions) -> SourceList:
    """Return the inputs with the labels of a table: names are classes, numbers are floats.

    Raises:
        PrepError: the table cannot be read, or does not fit the inputs.
    """
    known = {os.path.normpath(source.name) for source in inputs.sources}
    table = _read(path, inputs.root, known)
    if len(table.columns) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    _refuse_split_column(table, inputs.root)
    names = [os.path.normpath(row[table.paths]) for row in table.rows]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PrepError(f"{path} names {twice[0]!r} more than once")
    if missing := [name for name in names if name not in known]:
        raise PrepError(
            f"{path} names {len(missing)} images that are not in {inputs.root}, the first {missing[0]!r}; "
            f"paths are relative to SOURCE, such as {inputs.sources[0].name if inputs.sources else 'photo.jpg'!r}"
            f"{lacks_ending(inputs.root, missing[0])}"
        )
    others = [k for k in range(len(table.columns)) if k != table.paths]
    columns = _label_columns(table, others, options)
    if len(columns) == 1 and not any(map(is_number, table.column(columns[0]))):
        meaning, labels = _classes(table, columns[0], sure=bool(options.label_column))
    else:
        meaning, labels = _vectors(table, columns)
    unlabelled = -1 if meaning.kind == "class" else (float("nan"),) * len(columns)
    by_name = dict(zip(names, labels, strict=True))
    sources = []
    for source in inputs.sources:
        name = os.path.normpath(source.name)
        sources.append(relabelled(source, by_name.get(name, unlabelled), has_label=name in by_name))
    notes = (*inputs.notes, *_left_out(table, columns, others))
    return replace(inputs, labels=meaning, sources=sources, labelled_by=table.describe(columns), notes=notes)


def _refuse_split_column(table: _Table, root: Path) -> None:
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
