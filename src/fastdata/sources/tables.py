"""Tables of paths as SOURCE, or as labels for a folder of images; and text in other encodings than UTF-8."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import xxhash

from fastdata.errors import CodecError, PrepError
from fastdata.sources.arrow import class_names, column_of, image_columns, open_parquet
from fastdata.sources.base import pointer_of
from fastdata.sources.fields import field_error, fit, give_type, nested, parse_text
from fastdata.sources.files import as_spelled, is_image, is_number, look, parse_json, path_key
from fastdata.sources.folder import list_entries
from fastdata.sources.inputs import Field, Packed, Source, SourceList, SplitsError, not_stored
from fastdata.sources.labels import with_labels
from fastdata.sources.options import LABELS, PATHS, LabelOptions, choose_label, find_column
from fastdata.sources.urls import AnyPath, join, look_at_all, to_path
from fastdata.store.manifest import Labels
from fastdata.words import number_of

INDEX_COLUMN = re.compile(r"(Unnamed: .*|__index_level_\d+__)?")  # the columns that pandas writes for the index of a DataFrame
JSONL = (".jsonl", ".ndjson")
PARQUET = ".parquet"
ENCODING_BYTES = 1024  # of the beginning of a file that tell its encoding
MIN_UNMARKED_BYTES = 8  # that tell it without a mark
ROWS = 1024  # of a Parquet that are in memory as Python's values


@dataclass(frozen=True)
class PathTable:
    """Named columns, one of which holds paths."""

    path: AnyPath
    columns: dict[str, Packed[Any]]  # the cells of each: text, without blanks around it, or values as JSON has them
    paths: str  # the column of paths, which are text
    texts: bool  # whether all cells are text
    schema: dict[str, Any]  # of Parquet: each column's Arrow type, and the names of its classes

    @property
    def names(self) -> Packed[Any]:
        """The path of each row."""
        return self.columns[self.paths]

    def column(self, name: str, option: str) -> Packed[Any]:
        """Return the cells of the column that an option names."""
        if name not in self.columns:
            raise PrepError(f"{option}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return self.columns[name]


def is_path_table(path: AnyPath, path_column: str | None = None) -> bool:
    """Return whether a source is a file of paths. A Parquet is one if it has `path_column`, or a column in PATHS and no images."""
    ending = path.suffix.lower()
    if ending != PARQUET or not path.is_file():
        return ending in (".csv", ".tsv", *JSONL) and path.is_file()
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
    except PrepError:  # reading it as an archive reports this better
        return False
    texts = [name for name in schema.names if name.lower() in PATHS and "string" in str(schema.field(name).type)]
    return path_column in schema.names or (bool(texts) and not image_columns(schema))


def _read(path: AnyPath, options: LabelOptions, fields: Sequence[Field]) -> PathTable:
    """Read a table; an unknown ending means CSV. Raise PrepError if it cannot be read, is empty, or has no column of paths."""
    ending, schema, columns, count = path.suffix.lower(), dict[str, Any](), dict[str, Packed[Any]](), 0
    texts = ending not in (*JSONL, PARQUET)
    if ending == PARQUET:
        rows = _parquet_rows(path, {*(field.path[0] for field in fields), options.label_column, *options.regression}, schema)
    else:
        rows = _csv_rows(path) if texts else _json_rows(path)
    try:
        for row in rows:
            if not row.keys() <= columns.keys():
                columns |= {name: Packed[Any]([None] * count) for name in row if name not in columns}
            for name, cells in columns.items():
                cells.append(row.get(name))
            count += 1
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not count:
        raise PrepError(f"{path} has no rows")
    paths = options.path_column or find_column(columns, PATHS)
    if not paths:
        found = f"{path} has no column {PATHS[0]}, only {', '.join(columns)}: name the column of paths with --path-column"
        others = "Text needs --tokenizer or --train-bpe. A table without paths needs no preparing: TableDataset reads it"
        raise PrepError(f"{found}. {others}")
    table = PathTable(path, columns, paths, texts, schema)
    cells = table.column(paths, f"--path-column {paths}")
    columns[paths] = cells if texts else Packed(map(str, cells))
    return table


def _csv_rows(path: AnyPath) -> Iterator[dict[str, str]]:
    rows = filter(None, read_rows(path))
    names = [cell.strip() for cell in next(rows, ())]
    if len(set(names)) < len(names):
        raise PrepError(f"{path} has two columns of the same name: {', '.join(names)}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise PrepError(f"{path}, row {number}: {number_of(len(row), 'column')}, but the first row has {len(names)}")
        yield dict(zip(names, map(str.strip, row), strict=True))


def _json_rows(path: AnyPath) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one in each line. A key that a line lacks is null there."""
    _refuse_head(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8-sig"))
                if not isinstance(row, dict):
                    raise ValueError(f"it is a {type(row).__name__}")
            except (ValueError, RecursionError) as error:
                example = '{"path": "a.jpg", "label": "cat"}'
                raise PrepError(f"{path}, line {number} is not a JSON object, such as {example}: {error}") from None
            yield row


def _parquet_rows(path: AnyPath, wanted: Collection[str | None], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows, and set each column's type and classes in `schema`. Unwanted lists and structs are empty lists."""
    with open_parquet(path) as file:
        arrow = file.schema_arrow
        schema.update({field.name: (field.type, class_names(arrow, field.name)) for field in arrow})
        read = [name for name, (kind, _) in schema.items() if not kind.num_fields or name in wanted or name.lower() in LABELS]
        unread: dict[str, Any] = {name: [] for name in schema if name not in read}
        for batch in file.iter_batches(ROWS, columns=read, use_threads=False):
            yield from ({**row, **unread} for row in batch.to_pylist())


# CSV


def read_rows(path: AnyPath) -> Iterator[list[str]]:
    """Yield the rows of a CSV, strictly: a stray quote, which would join rows, is a PrepError."""
    _refuse_head(path)
    csv.field_size_limit(sys.maxsize)  # run-length masks are longer than the default
    line = 0  # where the row before it ends
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter_of(path), strict=True)
        try:
            for row in reader:
                yield row
                line = reader.line_num
        except csv.Error as error:
            wrong = f"{error}: a quote is missing, or stands inside of a quoted value, where it must be doubled"
            raise PrepError(f"{path}, the row that begins at line {line + 1}: {wrong}") from None
        except UnicodeDecodeError as error:
            text = error.object[max(0, error.start - 20) : error.end + 20].decode("latin-1")
            raise PrepError(f"{path} is not UTF-8: if {text!r} reads right, convert it: {_iconv('LATIN1', str(path))}") from None


def delimiter_of(path: AnyPath) -> str:
    """Return the delimiter of a CSV: comma, semicolon or tab, whichever comes first in its first line."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = re.sub(r'"[^"]*"', "", file.readline())
    return next((character for character in names if character in ",;\t"), ",")


# Encodings


def _name_encoding(head: bytes) -> str:
    """Return the encoding of a text if it is UTF-16 or UTF-32, else ""."""
    if (name := json.detect_encoding(head).upper()) in ("UTF-16", "UTF-32"):  # a mark at the beginning says so
        return name
    even, odd = head[::2].count(0), head[1::2].count(0)
    unmarked = len(head) >= MIN_UNMARKED_BYTES and not min(even, odd) and 4 * max(even, odd) > len(head)
    return ("UTF-16LE" if odd else "UTF-16BE") if unmarked else ""


def refuse_head(name: str, head: bytes) -> None:
    """Raise CodecError if the first bytes of a text file are a pointer, or are UTF-16 or UTF-32."""
    if pointer := pointer_of(head):
        raise CodecError(f"it is {pointer}", "pointer")
    if encoding := _name_encoding(head[:ENCODING_BYTES]):
        raise CodecError(f"it is {encoding}, not UTF-8: convert it with {_iconv(encoding, name)}", "not-utf8")


def _iconv(encoding: str, name: str) -> str:
    return f"{shlex.join(['iconv', '-f', encoding, '-t', 'UTF-8', name])} > utf8.txt"


def _refuse_head(path: AnyPath) -> None:
    with path.open("rb") as file:
        try:
            refuse_head(str(path), file.read(ENCODING_BYTES))
        except CodecError as error:
            raise PrepError(f"cannot read {path}: {error}") from None


SPLIT = "split"


def list_table(path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """List the inputs that a table names, with their labels, and with the values of `fields`, which are columns of it."""
    options = options.of_source()
    root = path.parent if options.root is None else to_path(options.root)
    table = _select_split(_read(path, options, fields), options.split)
    look_at_all(root, table.names)
    found = _with_similar(root, Packed(Source(name, -1, *look(join(root, name))) for name in table.names), path)
    inputs, rows = SourceList(root, Labels("none"), found, selected=True), range(len(found))
    inputs = _with_labels(with_columns(inputs, table, rows, fields), table, rows, fields, options)
    _refuse_two_labels(table, inputs.sources)
    return inputs


def with_table(inputs: SourceList, path: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """Return the inputs with the labels of a table, if a column is left for them, and with the values of `fields`, its columns."""
    table = _read(path, options, fields)
    if len(splits := sorted(set(_splits(table)))) > 1:
        each = f"prepare each split by itself, with {path} as SOURCE, and --root {inputs.root} --split {splits[0]}"
        raise PrepError(f"--labels {path}: its rows belong to {' and '.join(splits)}, which would be mixed: {each}")
    files = [source.name for source in inputs.sources]
    meant, by_file = _match(table.names, files, path), dict[str, int]()
    for row, name in enumerate(table.names):
        file = meant.get(path_key(name), os.path.normpath(name))
        if by_file.setdefault(file, row) != row:
            raise PrepError(f"{path} names {file!r} more than once; keep one row")
    if not meant:
        first = f"its first path is {table.names[0]!r}, but paths are relative to SOURCE, such as {[*files, 'photo.jpg'][0]!r}"
        raise PrepError(f"{path} names no input of {inputs.root}: {first}")
    present = {*files}
    lost = [file for file in by_file if file not in present]
    inputs = replace(inputs, sources=Packed(chain(inputs.sources, (Source(file, -1, -1, "missing") for file in lost))))
    rows = [by_file.get(file, -1) for file in (*files, *lost)]
    return _with_labels(with_columns(inputs, table, rows, fields), table, rows, fields, options)


# Which file a path means


def _match(names: Iterable[str], files: Sequence[str], table: AnyPath) -> dict[str, str]:
    """Map the key of each name to its file: the one with that name, else the only one with that stem."""
    wanted = {path_key(name): name for name in names}
    exact, stems = dict[str, str](), defaultdict[str, list[str]](list)
    for file in files:
        key = path_key(file)
        if key in wanted and (key not in exact or os.path.normpath(file) == os.path.normpath(wanted[key])):
            exact[key] = file
        if (stem := os.path.splitext(key)[0]) in wanted:
            stems[stem].append(file)
    for stem in stems.keys() - exact.keys():
        able = list(filter(is_image, stems[stem])) or stems[stem]
        if len(able) > 1:
            raise PrepError(f"{table} names {wanted[stem]!r}, which may be {able[0]} or {able[1]}: write the ending")
        exact[stem] = able[0]
    return exact


def _with_similar(root: AnyPath, sources: Packed[Source], table: AnyPath) -> Packed[Source]:
    """Return the inputs, each missing one replaced by the file that `_match` finds in its folder, if any."""
    folders, meant = defaultdict[str, list[str]](list), dict[str, str]()
    for source in sources:
        if source.problem == "missing":
            folders[source.name.replace("\\", "/").rpartition("/")[0]].append(source.name)
    for written, names in folders.items():
        folder = as_spelled(root, written)
        path = join(root, folder) if folder else root
        files = [entry.name for entry in list_entries(path)] if path.is_dir() else []
        meant |= _match(names, [f"{folder}/{file}" if folder else file for file in files], table)

    def similar(source: Source) -> Source:
        file = meant.get(path_key(source.name)) if source.problem == "missing" else None
        return source if file is None else Source(file, -1, *look(join(root, file)))

    return Packed(map(similar, sources)) if meant else sources


def _refuse_two_labels(table: PathTable, sources: Sequence[Source]) -> None:
    encoded = (os.path.normpath(source.name).encode("utf-8", "surrogatepass") for source in sources)
    sums = np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(sources))  # a dict would fill the memory
    order = np.argsort(sums, kind="stable")
    for k in np.flatnonzero(np.diff(sums[order]) == 0):
        before, one = sources[int(order[k])], sources[int(order[k + 1])]
        same = os.path.normpath(one.name) == os.path.normpath(before.name)
        if same and (one.problem != before.problem or (not one.problem and one.label != before.label)):
            raise PrepError(f"{table.path} names {one.name!r} more than once, with different labels; keep the row that is right")


# Rows and columns


def _select_split(table: PathTable, wanted: str | None) -> PathTable:
    """Keep the rows of one split. If none is named, the table must have only one."""
    splits = _splits(table)
    names = sorted(set(splits))
    if wanted is None:
        if len(names) > 1:
            odd = next((f"rows of split {name!r}" for name in names if not name or "/" in name), "")
            raise SplitsError(table.path, {name: str(table.path) for name in names}, column=True, beside=odd)
        return table
    if not names:
        table.column(SPLIT, f"--split {wanted}")  # says which columns there are
    if wanted not in names:
        raise PrepError(f"--split {wanted}: {table.path} has no such rows; its splits are {', '.join(names)}")
    rows = np.flatnonzero([split == wanted for split in splits])
    return replace(table, columns={name: cells.taken(rows) for name, cells in table.columns.items()})


def _splits(table: PathTable) -> list[str]:
    """Return the split of each row, or nothing if there is no column of splits."""
    name = find_column(table.columns, [SPLIT])
    return [sys.intern("" if cell is None else str(cell)) for cell in (table.columns[name] if name else ())]


def _typed_cells(field: Field, table: PathTable) -> tuple[Field, Sequence[Any]]:
    """Return the field of a column of a table, with its type, and its values as JSON."""
    (first, *rest), column, found = field.path, field.column, Packed[Any]()
    cells, kind = table.column(first, f"--fields {field}"), None if rest else table.schema.get(first)
    texts = table.texts and not rest  # what is nested in text is JSON
    if not field.typed and kind is not None:
        try:
            column = column_of(column.name, *kind)
        except ValueError as error:
            raise field_error(field, error) from None
    elif not field.typed and texts and any(cells) and all(map(is_number, filter(None, cells))):
        raise field_error(field, f"its values are not text: {give_type(field)}")
    if column.type == "bytes" and not texts:
        raise field_error(field, "bytes come from files or tar members (NAME=ENDING), or from a Parquet that holds the images")
    for row, cell in enumerate(cells):
        try:
            value = nested(parse_json(cell) if rest and table.texts else cell, rest)
            if not field.typed and kind is None and not isinstance(value, str | None):
                raise ValueError(f"its values are not text: {give_type(field)}")
            value = fit(column, parse_text(column, value) if texts else value)
        except (ValueError, OverflowError, RecursionError) as error:
            raise field_error(field, f"{table.path}, row of {table.names[row]!r}: {error}") from None
        found.append(value.tolist() if isinstance(value, np.ndarray) else value)
    return replace(field, column=column, listed=True), found


def with_columns(inputs: SourceList, table: PathTable, rows: Sequence[int], fields: Sequence[Field]) -> SourceList:
    """Return the inputs with the values of the table. rows: the row of each input, or -1."""
    if not fields:
        return inputs
    typed = [_typed_cells(field, table) for field in fields]

    def with_values(source: Source, row: int) -> Source:
        if row < 0:
            return replace(source, problem="not-listed" if source.problem in ("", "no-label") else source.problem)
        return replace(source, values=(*(values[row] for _, values in typed), *source.values))  # the members of a tar come last

    return replace(inputs, sources=Packed(map(with_values, inputs.sources, rows)), fields=tuple(field for field, _ in typed))


def _with_labels(
    inputs: SourceList, table: PathTable, rows: Sequence[int], fields: Sequence[Field], options: LabelOptions
) -> SourceList:
    """Return the inputs with the labels of the table, and a note on columns that are not stored. rows: as for `with_columns`."""
    known = {table.paths, *(field.path[0] for field in fields)}
    others = [name for name in table.columns if name.lower() != SPLIT and name not in known]
    columns = _label_columns(table, others, options)
    if not columns and not fields and options.labels is not None and not options.no_labels:
        raise PrepError(f"--labels {table.path}: none of its columns {', '.join(table.columns)} holds labels")
    if left := [name or "one without a name" for name in others if name not in columns]:
        inputs = replace(inputs, notes=(*inputs.notes, not_stored(left, f"paths come from column {table.paths}")))
    if not columns and not inputs.selected:
        return inputs
    found = [table.columns[name] for name in columns]
    cells = found[0] if len(found) == 1 else Packed(zip(*found, strict=True) if found else repeat(None, len(table.names)))
    values = Packed(cells[row] if row >= 0 else None for row in rows)
    by = f"column{'s' if len(columns) > 1 else ''} {' and '.join(columns)} of {table.path.name}" if columns else ""
    _, names = table.schema.get("".join(columns), (None, ()))
    return with_labels(inputs, values, options, names=() if options.regression else names, by=by)


def _label_columns(table: PathTable, others: Sequence[str], options: LabelOptions) -> Sequence[str]:
    """Return the columns of the labels: those that the caller names, the one with a usual name, or the only other one."""
    if options.no_labels or options.regression:
        for name in options.regression:
            table.column(name, f"--regression {name}")
        return options.regression
    named = (name for name in others if not INDEX_COLUMN.fullmatch(name))
    likely = [name for name in named if not isinstance(table.columns[name][0], list | dict | bytes)]
    label = choose_label([*table.columns] if options.label_column else others, options.label_column or "", table.path, likely)
    if not label and likely:
        names = "the column of classes with --label-column, or columns of numbers with --regression"
        raise PrepError(f"{table.path}: labels may be in {', '.join(likely)}: name {names}; --label-column none means no labels")
    return [label] if label else []
