"""CSV and TSV files of paths and labels: as SOURCE, or beside a folder of images (`--labels`)."""

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
from fastdata.sources.inputs import Label, Source, SourceList, fits_float, is_image, look, splits_error
from fastdata.sources.notes import not_stored, refuse_captions
from fastdata.sources.options import LabelOptions
from fastdata.sources.reasons import lacks_ending
from fastdata.store.format import Labels
from fastdata.words import number_of

__all__ = ["class_names", "is_path_table", "list_table", "with_table"]

PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABELS = ("label", "labels", "class", "class_name", "category")
SPLIT = "split"


@dataclass(frozen=True)
class _Table:
    """Rows of text. root: of their paths. columns: their names; without a first line of names, "column 1" and so on."""

    path: Path
    root: Path
    columns: tuple[str, ...]
    named: bool
    rows: list[list[str]]

    def place_of(self, names: Sequence[str]) -> int | None:
        """The first column that is called so, whatever its capitals."""
        lower = [column.lower() for column in self.columns]
        return next((lower.index(name) for name in names if name in lower), None)

    @property
    def paths(self) -> int:
        """The column of paths."""
        return self.place_of(PATHS) or 0

    def column(self, place: int) -> list[str]:
        return [_in_utf8(self.path, row[place].strip()) for row in self.rows]

    def holds_paths(self) -> bool:
        """Whether the first row has a path, as far as one can tell."""
        first = self.rows[0][self.paths]
        return self.place_of(PATHS) is not None or is_image(first) or os.path.isfile(self.root / first)

    def chosen(self, name: str, option: str) -> int:
        """The column of that name, which an option needs."""
        if not self.named:
            raise PrepError(f"{option} needs names of columns: give {self.path} a first line, such as path,label,split")
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns.index(name)


def is_path_table(path: Path) -> bool:
    """Whether a source is a file of paths."""
    return path.is_file() and path.suffix.lower() in (".csv", ".tsv")


def _read(path: Path, root: Path, known: Collection[str] = ()) -> _Table:
    """A file whose rows all have one length. root: of its paths. known: normal paths, of which a first line of names is none."""
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
    columns = tuple(_in_utf8(path, cell.strip()) for cell in rows[0])
    if len(rows) == 1:
        raise PrepError(f"{path} has no rows: its only line, {','.join(columns):.60}, names columns")
    return _Table(path, root, columns, True, rows[1:])


def _in_utf8(path: Path, cell: str) -> str:
    """The same text, which is to be a name; in paths any bytes may be."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        said = cell.encode(errors="surrogateescape").decode("latin-1")
        command = shlex.join(["iconv", "-f", "LATIN1", "-t", "UTF-8", str(path)])
        raise PrepError(
            f"{path} is not UTF-8: in Latin-1, {said!r:.60} is in it; if that is right, convert it: {command} > utf8.csv"
        )
    return cell


def _is_header(rows: Sequence[Sequence[str]], root: Path) -> bool:
    """Whether the first row names columns: it begins with no path, as the next one does."""
    first, ending = rows[0][0], os.path.splitext(rows[0][0])[1].lower()
    as_the_next = ending != "" and len(rows) > 1 and ending == os.path.splitext(rows[1][0])[1].lower()
    return not (is_image(first) or as_the_next or os.path.isfile(root / first))


def list_table(path: Path, asked: LabelOptions) -> SourceList:
    """The inputs that a table names, with their labels.

    Raises:
        PrepError: it can't be read, holds several splits, or has other columns than the caller says.
    """
    root = path.parent if asked.root is None else Path(asked.root)
    table = _read(path, root)
    split = table.place_of([SPLIT]) if table.named else None
    if split is None and asked.split is not None:
        split = table.chosen(SPLIT, f"--split {asked.split}")
    if split is not None:
        table = _of_split(table, split, asked.split)
    paths = table.paths
    others = [k for k in range(len(table.columns)) if k not in (paths, split)]
    labels = [] if asked.labels is not None else _label_columns(table, others, asked)
    values = [table.column(k) for k in labels]
    if not labels:
        meaning, numbers = Labels("none"), list[Label]([-1]) * len(table.rows)
    elif len(labels) == 1 and not (asked.label_column and _are_fractions(values[0])):
        meaning, numbers = _classes(table, values[0], table.columns[labels[0]], sure=bool(asked.label_column))
    else:
        meaning, numbers = _vectors(table, labels)
    names = [row[paths] for row in table.rows]
    sources = [Source(name, label, *look(root / name)) for name, label in zip(names, numbers, strict=True)]
    by = _said_columns(table, labels)
    notes = (*_left_out(table, labels, others), *_repeated(table, labels, numbers))
    return SourceList(root, meaning, sources, labelled_by=by, notes=notes)


def _repeated(table: _Table, places: Sequence[int], labels: Sequence[Label]) -> tuple[str, ...]:
    """What to say of paths that stand there more than once.

    Raises:
        PrepError: one has different labels.
    """
    first: dict[str, int] = {}
    again = []
    for k, row in enumerate(table.rows):
        before = first.setdefault(os.path.normpath(row[table.paths]), k)
        if labels[k] != labels[before]:
            one, other = (", ".join(table.rows[at][place].strip() for place in places) for at in (before, k))
            raise PrepError(
                f"{table.path} names {row[table.paths]!r} more than once, with different labels: {one!r} and {other!r}; keep the "
                "row that is right"
            )
        if before != k:
            again.append(row[table.paths])
    label = ", with the same label" if places else ""
    count = f"{len(again)} rows of {table.path.name} name paths" if len(again) > 1 else f"1 row of {table.path.name} names a path"
    return (f"{count} that stood in it before{label}, such as {again[0]}; each row is a sample",) if again else ()


def _said_columns(table: _Table, places: Sequence[int]) -> str:
    columns = "columns " if len(places) > 1 else "column "
    names = " and ".join(table.columns[k] for k in places)
    return f"{columns if table.named else ''}{names} of {table.path.name}" if places else ""


def _left_out(table: _Table, labels: Sequence[int], others: Sequence[int]) -> tuple[str, ...]:
    left = [table.columns[k] or "one without a name" for k in others if k not in labels]
    paths = table.columns[table.paths] or "without a name"
    return (not_stored(left, f"paths come from {'column ' if table.named else ''}{paths}"),) if left else ()


def _of_split(table: _Table, place: int, wanted: str | None) -> _Table:
    """The rows of the split that is wanted; all, if there is but one."""
    splits = table.column(place)
    found = sorted(set(splits))
    if wanted is None:
        if len(found) > 1:
            raise splits_error(table.path, {name: str(table.path) for name in found}, column=True)
        return table
    if wanted not in found:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(found)}")
    return replace(table, rows=[row for row, split in zip(table.rows, splits, strict=True) if split == wanted])


def _label_columns(table: _Table, others: Sequence[int], asked: LabelOptions) -> list[int]:
    """What the caller names; or the column that is called a label; or all beside the paths that have a name, if any has."""
    if asked.no_labels or asked.label_from is not None:
        return []
    if asked.label_column:
        return [table.chosen(name, f"--label-column {name}") for name in asked.label_column]
    named = [k for k in others if table.named and table.columns[k].lower() in LABELS]
    return named if len(named) == 1 else [k for k in others if table.columns[k]] or list(others)


def _classes(table: _Table, values: Sequence[str], column: str, *, sure: bool) -> tuple[Labels, list[Label]]:
    if not sure:
        refuse_captions(values, f"{column} of {table.path}")
    _refuse_empty(table, [(value,) for value in values])
    names = class_names(str(table.path), set(values))
    number = {name: k for k, name in enumerate(names)}
    return Labels("class", names), [number[value] for value in values]


def _vectors(table: _Table, places: Sequence[int]) -> tuple[Labels, list[Label]]:
    names = tuple(table.columns[k] if table.named else f"label{n}" for n, k in enumerate(places, 1))
    columns = [table.column(k) for k in places]
    cells = [tuple(column[k] for column in columns) for k in range(len(table.rows))]
    for row, values in zip(table.rows, cells, strict=True):
        if not all(_is_number(value) for value in values if value):
            first = "give the table a first line, such as path,label, and " if not table.named else ""
            of_values = "" if table.holds_paths() else "; of a table without paths, name what is to be learnt with --target COLUMN"
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


def class_names(what: str, found: set[str]) -> tuple[str, ...]:
    """Sorted; as numbers where all are whole numbers, so that classes 0 to n-1 keep their numbers."""
    if _are_fractions(found):
        odd = min(text for text in found if not _are_whole([text]))
        raise PrepError(
            f"{what}: the labels are numbers that are not all whole, such as {odd!r}; for float targets name their "
            "columns with --label-column, for classes write whole numbers or names"
        )
    return tuple(sorted(found, key=int if _are_whole(found) else str))


def _are_whole(texts: Collection[str]) -> bool:
    return all(text.isascii() and text.isdigit() for text in texts)


def _are_fractions(texts: Collection[str]) -> bool:
    """Whether all are numbers, and not all whole and positive."""
    return not _are_whole(texts) and all(_is_number(text) for text in texts)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def with_table(found: SourceList, path: Path, asked: LabelOptions) -> SourceList:
    """The same inputs with the labels of a table beside them: names are classes, numbers are floats.

    Raises:
        PrepError: the table can't be read, or does not fit the inputs.
    """
    known = {os.path.normpath(source.name) for source in found.sources}
    table = _read(path, found.root, known)
    if len(table.columns) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    _refuse_split_column(table, found.root)
    names = [os.path.normpath(row[table.paths]) for row in table.rows]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PrepError(f"{path} names {twice[0]!r} more than once")
    if missing := [name for name in names if name not in known]:
        raise PrepError(
            f"{path} names {len(missing)} images that are not in {found.root}, the first {missing[0]!r}; "
            f"paths are relative to SOURCE, such as {found.sources[0].name if found.sources else 'photo.jpg'!r}"
            f"{lacks_ending(found.root, missing[0])}"
        )
    others = [k for k in range(len(table.columns)) if k != table.paths]
    places = _label_columns(table, others, asked)
    if len(places) == 1 and not any(map(_is_number, table.column(places[0]))):
        meaning, labels = _classes(table, table.column(places[0]), table.columns[places[0]], sure=bool(asked.label_column))
    else:
        meaning, labels = _vectors(table, places)
    nothing = -1 if meaning.kind == "class" else (float("nan"),) * len(places)
    by_name = dict(zip(names, labels, strict=True))
    sources = [_labelled(source, by_name, nothing) for source in found.sources]
    notes = (*found.notes, *_left_out(table, places, others))
    return replace(found, labels=meaning, sources=sources, labelled_by=_said_columns(table, places), notes=notes)


def _refuse_split_column(table: _Table, root: Path) -> None:
    place = table.place_of([SPLIT])
    if place is not None and len(found := sorted(set(table.column(place)))) > 1:
        command = shlex.join(["fastdata-prep", str(table.path), "--root", str(root), "--split", found[0]])
        raise PrepError(
            f"--labels {table.path}: its rows belong to {' and '.join(found)}, which would be mixed; prepare "
            f"each by itself: {command}"
        )


def _labelled(source: Source, labels: dict[str, Label], nothing: Label) -> Source:
    name = os.path.normpath(source.name)
    unlabelled = "" if name in labels else "no-label"
    return replace(
        source,
        label=labels.get(name, nothing),
        problem=source.problem if source.problem not in ("", "no-label") else unlabelled,
    )
