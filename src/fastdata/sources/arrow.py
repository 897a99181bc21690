"""Tables with a column of images: Parquet, and Arrow files and streams, as Hugging Face's `datasets` writes, caches and saves them.

An image is a struct of bytes and path, or bytes alone. The module needs pyarrow.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import PurePosixPath
from typing import Any

from fastdata.errors import CodecError, PrepError, RemoteError, needs
from fastdata.sources.base import ENDINGS, ArchiveColumns, Table, even_sizes, list_tables, open_once, unreadable
from fastdata.sources.inputs import Field, Source, SourceList
from fastdata.sources.options import LabelOptions, choose_label
from fastdata.sources.urls import AnyPath, seekable
from fastdata.store.columns import NUMBERS, Column

EMBED = 'dataset.with_format("arrow").map(datasets.table.embed_table_storage, batched=True).to_parquet(PATH)'
END_OF_STREAM = bytes([255] * 4 + [0] * 4)
BATCH_ROWS = 16  # of Parquet that are in memory at once

NAMES = {"halffloat": "float16", "float": "float32", "double": "float64", "uint64": "int64"}  # of numbers; others are numpy's
BYTES = ("binary", "large_binary", "binary_view")
OTHERS = dict.fromkeys(("string", "large_string", "string_view"), "text") | dict.fromkeys(BYTES, "bytes")
OTHERS |= dict.fromkeys(("struct", "map", "list", "large_list", "fixed_size_list", "null"), "json")


def import_pyarrow() -> Any:
    """Return pyarrow, with its modules."""
    with needs("pyarrow"):
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    return pyarrow


@contextmanager
def open_parquet(path: AnyPath) -> Iterator[Any]:
    """Open a Parquet file. Errors in opening it, or in reading it in the `with` block, become a PrepError."""
    with needs("pyarrow"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(seekable(path)) as file:
            yield file
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, error) from error


# Types


def column_of(name: str, kind: Any, names: tuple[str, ...] = ()) -> Column:
    """Return the column that suits an Arrow type. Raise ValueError if none does. names: what whole numbers stand for."""
    kind, shape = _decoded(kind), list[int]()
    many = str(kind).startswith(("list<", "large_list<"))
    inner = kind.value_type if many else kind
    while str(inner).startswith("fixed_size_list<"):
        shape.append(inner.list_size)
        inner = inner.value_type
    number = NAMES.get(str(inner), str(inner))
    if number in (*NUMBERS, "bool"):
        return Column(name, number, tuple(shape), many, names=names)
    if (type := OTHERS.get(str(kind).partition("<")[0])) is None:
        raise ValueError(f"it is of Arrow's type {kind}, which no column can hold; write it as a number, or as text")
    return Column(name, type)


def _decoded(kind: Any) -> Any:
    """Return the type of a dictionary's values; other types unchanged."""
    return kind.value_type if kind.__class__.__name__ == "DictionaryType" else kind


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text, dictionary-encoded or not."""
    return OTHERS.get(str(_decoded(kind))) == "text"


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the features that Hugging Face's datasets recorded for the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict) and name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def class_names(schema: Any, name: str) -> tuple[str, ...]:
    return tuple(map(str, _features(schema).get(name, {}).get("names") or ()))


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0 and str(kind.field("bytes").type) in BYTES


def image_columns(schema: Any) -> list[str]:
    """Return a schema's image columns: those of the feature Image, else structs with bytes, else bytes."""
    images = [name for name, feature in _features(schema).items() if feature.get("_type") == "Image"]
    return images or [f.name for f in schema if _is_struct(f.type)] or [f.name for f in schema if str(f.type) in BYTES]


def _columns(schema: Any, path: AnyPath, options: LabelOptions, chosen: Sequence[Field]) -> ArchiveColumns:
    """Choose the columns that are read."""
    able = [field.name for field in schema if _is_struct(field.type) or str(field.type) in BYTES]
    images = image_columns(schema)
    images = images if len(images) == 1 else [name for name in images if name in ("image", "img")]
    if len(images) != 1:
        named = f"{', '.join(able)}: rename one of them to image" if able else "none: TableDataset reads tables without images"
        raise PrepError(f"{path}: one column of images (a struct of bytes and path, or binary) is needed; there are {named}")
    classes = [name for name, feature in _features(schema).items() if feature.get("_type") == "ClassLabel"]
    label = choose_label(schema.names, options.column, path, classes)
    fields = {field.path[0] for field in chosen}
    others = tuple(name for name in schema.names if name not in (images[0], label, *fields))
    return ArchiveColumns(images[0], label, others, class_names(schema, label))


# Files


def read_arrow(path: AnyPath) -> Any:
    """Return the table of an Arrow file or stream, in mapped memory. Raise ArrowInvalid or ValueError if it is damaged."""
    pyarrow = import_pyarrow()
    mapped = pyarrow.memory_map(os.fspath(path))
    try:
        table = pyarrow.ipc.open_file(mapped).read_all()
    except pyarrow.ArrowInvalid:  # without an index at its end, the file is a stream
        mapped.seek(0)
        table = pyarrow.ipc.open_stream(mapped).read_all()  # which ends silently where a batch is missing
        begin, end = (mapped.read_at(len(END_OF_STREAM), at) for at in (0, mapped.size() - len(END_OF_STREAM)))
        if begin[:4] == END_OF_STREAM[:4] and end != END_OF_STREAM:
            raise ValueError("the stream's end is missing") from None
    table.validate(full=True)  # pyarrow follows offsets unchecked, and damaged ones would kill the process
    return table


class _ArrowFile:
    """A Parquet file, read a few rows at a time, since a row group may be larger than memory; or a memory-mapped Arrow file."""

    def __init__(self, path: AnyPath) -> None:
        self._table = None if ENDINGS[path.suffix.lower()] == "parquet" else read_arrow(path)
        if self._table is not None:
            self.schema, groups = self._table.schema, [len(self._table)]
        else:
            self._file = import_pyarrow().parquet.ParquetFile(seekable(path), buffer_size=1 << 20)
            metadata, self.schema = self._file.metadata, self._file.schema_arrow
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if min(groups, default=0) < 0:
            raise ValueError(f"a row group claims {min(groups)} rows")
        self._ends = list[int](accumulate(groups, initial=0))
        self._last = dict[str, tuple[int, Any, Iterator[Any]]]()  # of each column: a row, its value, and those behind it

    def __len__(self) -> int:
        return self._ends[-1]

    def column(self, name: str, field: str = "") -> list[Any]:
        """Return all values of a column, or of a field of its structs."""
        compute = import_pyarrow().compute
        leaf = f"{name}.{field}" if field else name
        column = (self._file.read([leaf], use_threads=False) if self._table is None else self._table)[name]
        if len(column) != len(self):
            raise ValueError(f"{leaf} has {len(column)} rows, but the file's row groups have {len(self)}")
        return list((compute.struct_field(column, field) if field else column).to_pylist())

    def cell(self, name: str, row: int) -> Any:
        """Return a value. Raise CodecError if that value, or an earlier one in its row group, is damaged."""
        try:
            if self._table is not None:
                return self._table[name][row].as_py()
            group = bisect_right(self._ends, row) - 1
            last, value, rest = self._last.get(name, (-1, None, iter(())))
            if not self._ends[group] <= last <= row:
                last, rest = self._ends[group] - 1, self._values(name, group)
            for value in islice(rest, row - last):  # noqa: B007
                last += 1
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001  pyarrow may raise anything on a damaged page
            raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
        if last < row:
            raise CodecError("the row is not there", "undecodable")
        self._last[name] = row, value, rest
        return value

    def _values(self, name: str, group: int) -> Iterator[Any]:
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
            yield from batch.column(0).to_pylist()

    def close(self) -> None:
        if self._table is None:
            self._file.close()


# The interface of archives


def list_inputs(root: AnyPath, files: list[AnyPath], options: LabelOptions, fields: Sequence[Field], *_: Any) -> SourceList:
    """List the rows of files, named after the image files that the rows were made from."""

    def table(path: AnyPath, name: str) -> Table:
        file, kind = open_once(path, _ArrowFile), ENDINGS[path.suffix.lower()]
        columns, sizes = _columns(file.schema, path, options, fields), even_sizes(path, len(file))
        image = file.schema.field(columns.image).type
        has_path = _is_struct(image) and image.get_field_index("path") >= 0
        paths = file.column(columns.image, "path") if has_path else [None] * len(file)
        bases = [PurePosixPath(one).name if isinstance(one, str) else "" for one in paths]
        inputs = [
            Source(f"{name}/{k:06d}{'-' * bool(base)}{base}", -1, sizes[k], locator=(kind, name, columns.image, k))
            for k, base in enumerate(bases)
        ]
        return columns, inputs, file.column(columns.label) if columns.label else [None] * len(file)

    return list_tables(table, root, files, options, import_pyarrow().ArrowException)


def cell(path: AnyPath, name: str, row: int) -> Any:
    """Return the value of a column in a row. Raise CodecError if it is damaged."""
    return open_once(path, _ArrowFile).cell(name, row)


def read(path: AnyPath, column: str, row: int) -> bytes:
    """Return the image file of a row. Raise CodecError if it holds none, or is damaged."""
    image = cell(path, column, row)
    if isinstance(image, dict):
        path_alone = image.get("path") if image.get("bytes") is None else None
        if path_alone:
            raise CodecError(f"the row has only a path, {path_alone}: embed the images, as {EMBED} does", "missing")
        image = image.get("bytes")
    if image is None:
        raise CodecError("the row holds no image", "no-image")
    return bytes(image)


def column(path: AnyPath, name: str) -> Column:
    """Return the store's column that suits a column of the file. Raise ValueError if none does."""
    schema = open_once(path, _ArrowFile).schema
    if name not in schema.names:
        raise ValueError(f"{path} has no such column; it has {', '.join(schema.names)}")
    return column_of(name, schema.field(name).type, class_names(schema, name))
