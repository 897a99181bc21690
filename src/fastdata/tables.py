"""Tables of Parquet, Arrow or CSV, and DataFrames, as compact rows in memory. pyarrow is an extra, imported when needed.

A source is read column by column, each in the narrowest dtype, and then written as rows.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

from fastdata.data.choice import checked
from fastdata.data.dataset import RowsDataset, counted_of, in_one_line, shown
from fastdata.errors import FastDataError, PrepError, StoreError, warn_user
from fastdata.sources.arrow import import_pyarrow, is_text, read_arrow
from fastdata.sources.files import LARGEST_FLOAT, have_commas
from fastdata.sources.inputs import listed
from fastdata.sources.tables import delimiter_of, read_rows
from fastdata.store.manifest import Labels
from fastdata.system import node_memory
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array

Names = str | Sequence[str]

PARQUETS, ARROWS, TEXTS = (".parquet", ".pq"), (".arrow", ".feather", ".ipc"), (".csv", ".tsv")
INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")  # torch computes with int16, not with uint16
FLOATS = ("float16", "float32", "float64")
NARROWED = ("int", "uint", "halffloat", "float", "double")  # the beginnings of Arrow's types of numbers
MASK = ".missing"  # a batch has a column's mask under its name and this
TARGET = "target"  # a field of a row; c0, c1 and so on are columns and masks
WORD_BYTES = 8  # a row is a whole number of words, so that it can be gathered as int64
NULLS = ("", "NA", "N/A", "#N/A", "NULL", "null", "None")  # in a CSV; in a column of names, only the first is missing
PADDED = r"^[+-]?0[0-9]+$"
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?([nN][aA][nN]|[iI][nN][fF]|[iI]nfinity)$"
LONG, WHOLE = r"^[+-]?[0-9]{16,}|^[+-]?[0-9.]+[eE][+]?[0-9]{3,}$", re.compile(r"[+-]?[0-9]+")  # that a float may not hold
TRUTH = r"^(true|True|TRUE|false|False|FALSE)$"


@dataclass(frozen=True)
class TableColumn:
    """The description of a column in memory."""

    name: str
    type: str  # the widest Arrow type of such values: "int64", "timestamp[us]" (since 1970), "string" (the place in `names`)
    dtype: str  # numpy's name of it
    missing: int | None = None  # how many values are missing; None: none, and no mask
    names: tuple[str, ...] | None = None  # of a category, in the order of its codes; None: it is none


class TableDataset(RowsDataset):
    """A table, held in memory once for all processes of this machine.

    `ds[i]` is ({column: tensor without dimensions}, target); a `Loader` delivers ({column: [B]}, targets [B]). Each column has the
    narrowest dtype that holds all of its values exactly; decimals are floats. A column with missing values comes with its mask, a
    bool tensor called "NAME.missing"; where that is True, the column holds NaN (floats), the number of names (categories), False
    (booleans) or 0 (all others). A NaN of Parquet or Arrow is a value; one of pandas is a missing value.

    Text is a category. Its names are sorted, by number if all are whole numbers; pandas categories and Arrow dictionaries keep
    their order. In a CSV, a column holds numbers, booleans, dates or timestamps if all its values are, names if none is a number.

    The target is an int class (names or booleans in the table), the number itself (whole numbers), a float32 vector (other numbers,
    or several targets), or -1 without a target. Rows whose target is missing or not finite are left out, with a warning.

    Args:
        source: a file (.parquet, .pq, .arrow, .feather, .ipc, .csv or .tsv), a list of files with the same columns, or a DataFrame
            (of pandas, polars, or any that exports an Arrow stream, such as a pyarrow Table).
        target: the column to predict, several columns of numbers, or None.
        category: columns of names that look like numbers; "01" is always a name.
        drop: columns to leave out.
        classes: another TableDataset, whose names of categories and classes are used, such as the one that a model is trained on.
        shared: hold the table once for all processes of this machine, see RAMDataset; False: for this process and its children.

    Attributes:
        columns: dict of each column's description: type, dtype, missing, names.
        categories: dict of each category's names, in the order of its codes.
        missing: dict of the number of missing values in each column with a mask.
        classes: names of the classes, or of the columns of float targets.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset.

    Raises:
        StoreError: a file cannot be read, or values cannot be held (numbers beside text), or the table does not fit into memory.
        ValueError: there is no such column, or an argument does not fit the others.
    """

    def __init__(
        self,
        source: Any,
        *,
        target: Names | None = None,
        category: Names = (),
        drop: Names = (),
        classes: TableDataset | None = None,
        shared: bool = True,
    ) -> None:
        super().__init__()
        options = {"target": target or (), "category": category, "drop": drop}
        wanted = {option: (names,) if isinstance(names, str) else tuple(dict.fromkeys(names)) for option, names in options.items()}
        self._source, described, arrays = _read(source, wanted, {} if classes is None else classes._described)
        self._described: dict[str, TableColumn] = {c.name: c for c in described}
        labels = _labels([self._described[name] for name in wanted["target"]])
        self.columns = {name: c for name, c in self._described.items() if name not in wanted["target"]}
        self.categories = {name: list(c.names) for name, c in self.columns.items() if c.names is not None}
        self.missing = {name: c.missing for name, c in self.columns.items() if c.missing is not None}
        targets = [arrays.pop(name) for name in wanted["target"]]
        self._fields = {name: f"c{k}" for k, name in enumerate(arrays)}  # of a row, by the names in a batch
        columns = {self._fields[name]: values for name, values in arrays.items()}
        if targets:
            vector = labels.kind == "vector"
            columns[TARGET] = np.stack([one.astype("<f4") for one in targets], 1) if vector else targets[0].astype("<i8")
        row, self._blocks = _layout({field: np.dtype((values.dtype, values.shape[1:])) for field, values in columns.items()})
        digest = xxhash.xxh3_128()
        for values in columns.values():
            digest.update(values.data)
        self._digest = digest.hexdigest()

        def fill(rows: Array) -> None:
            for field, values in columns.items():
                rows[field] = values

        key = repr((described, wanted["target"], labels, self._digest)) if shared else None
        count = len(next(iter(columns.values())))
        self._whole = _TableMemory(node_memory.once(key, count, row, fill, "leave columns out (drop=NAME)"), labels)

    @property
    def _all(self) -> _TableMemory:
        return self._whole

    @property
    def _sums(self) -> list[str]:
        return [self._digest]

    def column(self, name: str) -> torch.Tensor:
        """Return a copy of all values of a column, or of a mask ("NAME.missing"), in the order of this dataset."""
        if name not in self._fields:
            raise KeyError(f"no column {name!r}; there are {listed([*map(repr, self._fields)])}")
        return torch.from_numpy(self._whole.memory.array[self._fields[name]][self.rows(np.arange(len(self)))])

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], Any]:
        columns, targets = self.gather(self.rows(np.array([checked(index, len(self))])))
        target = targets[0]
        return {name: column[0] for name, column in columns.items()}, int(target) if target.ndim == 0 else target

    def locate(self, indices: Any, *, seed: int = 0, epoch: int = 0, repeats: Array | None = None) -> Array:
        """Return the rows of a batch, int64, for `gather`. Rows do not depend on the other arguments."""
        return self.rows(indices)

    def gather(self, rows: Array, *, pin: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return ({column: [B]}, targets [B] or [B, columns]) for rows of the whole table. pin: page-lock the tensors."""
        words = self._whole.memory.array.view(np.int64).reshape(len(self._whole), -1)
        taken = words.take(rows, axis=0).view(np.uint8)
        parts = dict[str, Any]()
        for begin, end, dtype, fields in self._blocks:
            block = taken[:, begin:end].view(dtype)
            if fields != [TARGET]:
                parts.update(zip(fields, _contiguous(block.T, pin).unbind(), strict=True))
            else:
                parts[TARGET] = _contiguous(block if self._whole.labels.kind == "vector" else block[:, 0], pin)
        targets = parts[TARGET] if TARGET in parts else torch.full((len(rows),), -1, device="cpu", pin_memory=pin)
        return {name: parts[field] for name, field in self._fields.items()}, targets

    def _strata(self) -> Array:
        return self.targets if self._whole.labels.kind == "integer" else super()._strata()

    def __repr__(self) -> str:
        classes = f"{len(self.classes)} classes" if self._whole.labels.kind == "class" else ""
        rows = counted_of(len(self), len(self._whole), f"rows of {len(self.columns)} columns")
        return in_one_line(self, rows, classes, self._source)


@dataclass
class _TableMemory:
    """All rows of a table in memory, and the meaning of their targets."""

    memory: SharedArray
    labels: Labels

    def __len__(self) -> int:
        return len(self.memory.array)

    @property
    def targets(self) -> Array:
        return np.full(len(self), -1, np.int64) if self.labels.kind == "none" else self.memory.array[TARGET]

    def shards_of(self, rows: Array) -> Array:
        """Return 0 for each row: a table in memory is one shard."""
        return np.zeros(len(rows), np.int64)


def _layout(formats: Mapping[str, np.dtype[Any]]) -> tuple[np.dtype[Any], list[tuple[int, int, np.dtype[Any], list[str]]]]:
    """Return the dtype of a row, large fields first, and its blocks of fields of one dtype: (begin, end, dtype, fields)."""
    order = sorted(formats, key=lambda f: (-formats[f].base.itemsize, str(formats[f].base), f == TARGET))
    blocks, end = [], 0
    for (dtype, _), group in groupby(order, key=lambda f: (formats[f].base, f == TARGET)):
        fields = list(group)
        begin, end = end, end + sum(formats[field].itemsize for field in fields)
        blocks.append((begin, end, dtype, fields))
    return np.dtype([*((field, formats[field]) for field in order), ("rest", f"V{-end % WORD_BYTES}")]), blocks


def _contiguous(part: Array, pin: bool) -> torch.Tensor:
    """Copy into a contiguous tensor, with numpy: for so few bytes it takes half of torch's time."""
    if not pin:
        return torch.from_numpy(np.ascontiguousarray(part))
    out = torch.empty(part.shape, dtype=torch.from_numpy(part[:0].copy()).dtype, device="cpu", pin_memory=True)
    out.numpy()[...] = part
    return out


def _labels(columns: Sequence[TableColumn]) -> Labels:
    """Return what the targets mean."""
    if not columns:
        return Labels("none")
    first, names = columns[0], tuple(column.name for column in columns)
    if len(columns) == 1 and (first.names is not None or first.type == "bool"):
        return Labels("class", first.names or ("false", "true"))
    if column := next((column for column in columns if not column.type.startswith((*NARROWED, "bool"))), None):
        raise ValueError(f"target {column.name!r} holds {column.type} values: use numbers only, or one column of names")
    if len(columns) > 1 or "int" not in first.type:
        return Labels("vector", names)
    if first.dtype == "uint64":
        raise ValueError(f"target {first.name!r} exceeds int64: to take its numbers as classes, give category={first.name!r}")
    return Labels("integer")


# Sources: files or a DataFrame, whose columns are arrays of Arrow


class _Table(NamedTuple):
    """A file, or a DataFrame. read: returns a column by its name."""

    name: str
    schema: Any
    read: Callable[[str], Any]


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raise a StoreError for any error of pyarrow on damaged or unusual input."""
    try:
        yield
    except FastDataError as error:
        raise (StoreError(str(error)) if isinstance(error, PrepError) else error) from None
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StoreError(f"{what} cannot be read as a table: {first:.300}") from error


def _open(source: Any, untyped: Container[str]) -> list[_Table]:
    """Return the parts of a source. untyped: the columns of a CSV that stay text."""
    pa, is_pandas = import_pyarrow(), hasattr(source, "iloc") and hasattr(source, "columns")
    if is_pandas or hasattr(source, "__arrow_c_stream__"):
        with _reading("the DataFrame"):
            table = pa.Table.from_pandas(source, preserve_index=False) if is_pandas else pa.table(source)
        return [_Table("the DataFrame", table.schema, table.column)]
    if not isinstance(source, str | os.PathLike | list | tuple) or not source:
        raise TypeError(f"source is a {type(source).__name__}, but must be a file, some files in a list, or a DataFrame")
    parts = []
    for path in map(Path, source if isinstance(source, list | tuple) else [source]):
        ending = path.suffix.lower()
        if ending not in (*PARQUETS, *ARROWS, *TEXTS):
            raise ValueError(f"{path} is no table: its name must end in {', '.join((*PARQUETS, *ARROWS, *TEXTS))}")
        with _reading(str(path)):
            if ending in PARQUETS:
                opened = partial(pa.parquet.ParquetFile, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
                schema = opened(path).schema_arrow
                file = opened(path, read_dictionary=[field.name for field in schema if is_text(field.type)])
                parts.append(_Table(shown(path), schema, lambda name, file=file: file.read([name]).column(name)))  # type: ignore[misc]
            else:
                table = read_arrow(path) if ending in ARROWS else _read_csv(path, untyped)
                parts.append(_Table(shown(path), table.schema, table.column))
    return parts


def _read_csv(path: Path, untyped: Container[str]) -> Any:
    """Read a CSV. Empty cells are null. A CSV with quotes is also read by Python's strict reader."""
    pa, rows, delimiter = import_pyarrow(), read_rows(path), delimiter_of(path)
    names = next(rows, [])
    if not all(name.strip() for name in names):
        raise StoreError(f"{path}: line 1 must name all columns (pandas: to_csv(index=False)), found {listed([*map(repr, names)])}")
    with path.open("rb") as file:
        if any(b'"' in line for line in file):
            deque(rows, maxlen=0)
    types, parsing = dict.fromkeys(names, pa.large_string()), pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    as_text = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    table = pa.csv.read_csv(path, pa.csv.ReadOptions(use_threads=False), parsing, as_text)
    names = [name.strip() for name in names]
    columns = [c if name in untyped else _typed(c, name) for name, c in zip(names, table.columns, strict=True)]
    return pa.table(columns, names)


def _typed(texts: Any, name: str) -> Any:
    """Convert a column of text to the type of all its values. Numbers beside other text are an error: they may be damaged."""
    pa, compute = import_pyarrow(), import_pyarrow().compute
    values = compute.utf8_trim_whitespace(texts)
    values = compute.if_else(compute.is_in(values, value_set=pa.array(NULLS, values.type)), pa.scalar(None, values.type), values)
    distinct = compute.unique(values).drop_null()
    matches, count = partial(compute.match_substring_regex, distinct), len(distinct)
    if not count:
        return pa.nulls(len(texts))
    found, padded, truths, floats = (compute.sum(matches(pattern)).as_py() for pattern in (NUMBER, PADDED, TRUTH, "[.eEnN]"))
    if padded:
        return texts
    if truths == count:
        return compute.equal(compute.utf8_lower(values), "true")
    kinds, wrong = [pa.date32(), *(pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ms", "us", "ns"))], ""
    if found == count:
        values = compute.replace_substring_regex(values, r"^\+", "")  # which Arrow does not accept
        kinds = [pa.float64()] if floats else [pa.int64(), pa.uint64()]
        wrong = "whole numbers of more than 64 bits"
        long = distinct.filter(matches(LONG)).to_pylist() if kinds == [pa.float64()] else []
        if lost := next(filter(_is_lost, long), ""):
            kinds, wrong = [], f"numbers that no float holds, such as {lost!r:.60}"
    elif found:
        number, other = (distinct.filter(mask)[0].as_py() for mask in (matches(NUMBER), compute.invert(matches(NUMBER))))
        kinds, wrong = [], f"numbers, such as {number!r:.60}, and other text, such as {other!r:.60}"
    elif have_commas(distinct.to_pylist()):
        wrong = f"numbers with a comma, such as {distinct[0].as_py()!r:.60}, which must be written as 1.5 or 1234567"
    for kind in kinds:
        with suppress(pa.ArrowInvalid):
            return values.cast(kind)
    if wrong:
        remedies = f"take all of it as names (category={name!r}), or leave it out (drop={name!r})"
        raise StoreError(f"column {name!r} holds {wrong}: correct it, or {remedies}")
    return texts


def _is_lost(text: str) -> bool:
    return int(text) != float(text) if WHOLE.fullmatch(text) else math.isinf(float(text))


# Values: from Arrow's arrays to numpy's, in the narrowest dtype


def _widest(name: str, kind: Any) -> Any:
    """Return the widest form of a type; for text, a dictionary type, ordered if the type was a dictionary."""
    pa, types = import_pyarrow(), import_pyarrow().types
    value = kind.value_type if types.is_dictionary(kind) else kind
    if is_text(value):
        return pa.dictionary(pa.int32(), pa.string(), types.is_dictionary(kind))
    if types.is_integer(value):
        return pa.uint64() if value == pa.uint64() else pa.int64()
    if types.is_decimal(value):
        return pa.float64() if value.scale else pa.int64()
    if types.is_date(value):
        return pa.date32()
    if types.is_floating(value) or types.is_temporal(value) or types.is_boolean(value) or types.is_null(value):
        return value
    what = "nested values" if types.is_nested(value) else "bytes" if "binary" in str(value) else "values that have no dtype"
    raise StoreError(f"column {name!r} holds {what} ({value}): leave it out (drop={name!r}), or convert it to numbers or text")


def _as_names(array: Any, kind: Any) -> Any:
    """Return a chunked array of anything as dictionaries of text."""
    pa = import_pyarrow()
    stored_once = pa.types.is_dictionary(array.type) and is_text(array.type)
    if not stored_once or any(chunk.dictionary.null_count for chunk in array.chunks):
        array = (array if array.type == pa.large_string() else array.cast(pa.string())).dictionary_encode()
    return array.cast(kind)


def _to_numpy(array: Any) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the values of a chunked array of a wide type, where they are missing, and the names of categories."""
    pa, names = import_pyarrow(), ()
    array = array.unify_dictionaries().combine_chunks()
    missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_dictionary(array.type):
        names, array = tuple(array.dictionary.to_pylist()), array.indices
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.uint8), missing, names
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if not pa.types.is_floating(array.type):  # else NaN follows from nulls
        array = array.fill_null(False if pa.types.is_boolean(array.type) else len(names))
    return np.asarray(array.to_numpy(zero_copy_only=False)), missing, names


def _narrowest(values: Array) -> str:
    """Return the smallest dtype that holds all values exactly; of two of equal size, the one that torch computes with."""
    if values.dtype.kind in "iu":
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        return next(name for name in INTEGERS if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    with np.errstate(over="ignore", invalid="ignore"):
        return next(name for name in FLOATS if np.array_equal(values.astype(name), values, equal_nan=True))  # -0.0 stays -0.0


def _read(
    source: Any, wanted: Mapping[str, tuple[str, ...]], classes: Mapping[str, TableColumn]
) -> tuple[str, list[TableColumn], dict[str, Array]]:
    """Return the name of a source, what its columns hold, and their values and masks, in the rows that have a target."""
    parts = _open(source, {*wanted["category"], *wanted["drop"], *(each for each, one in classes.items() if one.names is not None)})
    name = parts[0].name if len(parts) == 1 else f"{len(parts)} files"
    names = parts[0].schema.names
    if not names:
        raise StoreError(f"{name} has no columns")
    for part in parts:
        if len({*names}) < len(names) or sorted(part.schema.names) != sorted(names):
            found = listed([*map(repr, part.schema.names)])
            raise StoreError(f"{part.name} has two columns of the same name, or other columns than {parts[0].name}; it has {found}")
    chosen = [column for column in names if column not in wanted["drop"]]
    for option, known in (("drop", names), ("target", chosen), ("category", chosen)):
        if unknown := [column for column in wanted[option] if column not in known]:
            raise ValueError(f"{option} is {unknown[0]!r}, but must be among the columns {listed([*map(repr, known)])} of {name}")
    if not {*chosen} - {*wanted["target"]}:
        raise ValueError(f"all columns of {name} are targets or dropped ({listed([*map(repr, names)])}): keep one to learn from")

    def read(each: str) -> tuple[TableColumn, Array, Array]:
        return _values(each, parts, names=each in wanted["category"], other=classes.get(each))

    targets = [read(target)[1:] for target in wanted["target"]]
    fits = [np.abs(v.astype(np.float64)) <= LARGEST_FLOAT if v.dtype.kind == "f" else ~missing for v, missing in targets]
    rows = np.logical_and.reduce(fits) if fits else None
    if rows is not None and rows.any() and not rows.all():
        first = f"row {np.argmin(rows)} is the first without a target, or with one that float32 cannot hold"
        warn_user(f"{np.sum(~rows)} of {len(rows)} rows of {name} are left out: {first}")
    columns, arrays = list[TableColumn](), dict[str, Array]()
    for each in chosen:
        column, values, missing = read(each)
        if rows is not None:
            values, missing = values[rows], missing[rows]
        if not len(values):
            raise StoreError(f"{name} has no rows{'' if rows is None else ' with a target'}")
        dtype = _narrowest(values) if column.type.startswith(NARROWED) else column.dtype
        count = None if each in wanted["target"] else int(missing.sum()) or None
        columns.append(replace(column, dtype=dtype, missing=count))
        arrays[each] = np.ascontiguousarray(values, dtype)
        if count is not None:
            if each + MASK in chosen:
                raise ValueError(f"column {each + MASK!r} clashes with the mask of {each!r}: rename it")
            arrays[each + MASK] = np.ascontiguousarray(missing)
    return name, columns, arrays


def _values(name: str, parts: Sequence[_Table], *, names: bool, other: TableColumn | None) -> tuple[TableColumn, Array, Array]:
    """Read a column of all parts: its description, its values, and where they are missing. other: take this column's categories."""
    pa, chunks, names = import_pyarrow(), [], names or (other is not None and other.names is not None)
    types = [pa.string()] if names else [part.schema.field(name).type for part in parts]
    with _reading(f"{parts[-1].name}, column {name!r}"):
        schemas = [pa.schema([(name, _widest(name, kind))]) for kind in types]
        joint = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        kind = joint if pa.types.is_dictionary(joint) else _widest(name, joint)
        for part in parts:
            with _reading(f"{part.name}, column {name!r}"):
                array = part.read(name)
                if pa.types.is_decimal(array.type):
                    array = array.cast(pa.string())  # whose digits are read exactly
                chunks += (_as_names(array, kind) if pa.types.is_dictionary(kind) else array.cast(kind)).chunks
        values, missing, texts = _to_numpy(pa.chunked_array(chunks, kind))
    type = "string" if pa.types.is_dictionary(kind) else str(kind)
    kinds = {type, type if other is None else other.type} - {"null"}
    if other is not None and len(kinds) > 1 and not all(one.startswith(NARROWED) for one in kinds):
        raise ValueError(f"column {name!r} is {type}, but {other.type} in the table of `classes`: use one type")
    if type != "string":
        return TableColumn(name, type, values.dtype.name), values, missing
    digits = all(each.isascii() and each.isdigit() for each in texts)
    ordered = texts if kind.ordered else sorted(texts, key=lambda each: (int(each) if digits else 0, each))
    if other is not None and other.names is not None:
        ordered = other.names
        if unknown := sorted({*texts} - {*ordered}):
            raise ValueError(f"column {name!r} has names that the table of `classes` lacks: {listed([*map(repr, unknown)])}")
    codes = {each: k for k, each in enumerate(ordered)}
    values = np.array([*(codes[each] for each in texts), len(codes)])[values]
    return TableColumn(name, type, _narrowest(np.array([len(codes)])), names=tuple(ordered)), values, missing
