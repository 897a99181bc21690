"""Parquet tables with a column of images, as Hugging Face's datasets writes them: a struct of bytes and path, or bytes alone.

Needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from fastdata.errors import CodecError, PrepError, RemoteError, needs
from fastdata.sources.archive import Columns, Item, Kind, Selection, Table, ends_in, even_sizes, files_in, list_tables, open_once
from fastdata.sources.arrow_types import column_of
from fastdata.sources.fields import field_error
from fastdata.sources.inputs import SourceList
from fastdata.sources.options import NO_LABELS
from fastdata.sources.urls import AnyPath, is_inside, seekable
from fastdata.store.column import Column

__all__ = ["KIND", "columns_of", "field_of", "holds_images", "image_bytes", "list_arrow", "row_name"]

ENDING = ".parquet"
LABELS = ("label", "labels", "fine_label", "class", "cls", "target", "y")
EMBED = 'dataset.with_format("arrow").map(datasets.table.embed_table_storage, batched=True).to_parquet(PATH)'
ROWS = 16  # that are in memory at once


def _arrow() -> Any:
    with needs("pyarrow"):
        import pyarrow.parquet
    return pyarrow


def list_arrow(
    read_table: Callable[[AnyPath, str, Selection], Table], root: AnyPath, files: list[AnyPath], selection: Selection
) -> SourceList:
    """List the inputs of files that pyarrow reads, as `list_tables` does."""
    return list_tables(read_table, root, files, selection, (OSError, ValueError, _arrow().ArrowException))


def columns_of(schema: Any, path: AnyPath, selection: Selection) -> Columns:
    """Choose the columns of an Arrow schema that are read.

    Raises:
        PrepError: there is no column of images, there are several, or a column that is named does not exist.
    """
    key = selection.key
    features = _features(schema)
    found = _image_columns(schema)
    if key:
        if key not in schema.names or not (_is_struct(schema.field(key).type) or _is_binary(schema.field(key).type)):
            raise PrepError(f"{path} has no column {key!r} of images; it has {', '.join(map(repr, found)) or 'none'}")
        found = [key]
    if len(found) > 1:
        found = [name for name in found if name in ("image", "img")] or found
    if len(found) != 1:
        what = f"several: {', '.join(found)}; name one as {path}::{found[0]}" if found else f"none: {', '.join(schema.names)}"
        what += "" if found else "; a table without images is not prepared: TableDataset reads it"
        raise PrepError(f"{path}: a column of images (a struct of bytes and path, or binary) is needed, but there are {what}")
    image = schema.field(found[0]).type
    label = _label_column(schema, features, path, selection.label)
    names = features.get(label, {}).get("names")
    has_path = _is_struct(image) and image.get_field_index("path") >= 0
    others = tuple(name for name in schema.names if name not in (found[0], label, *selection.fields))
    return Columns(found[0], label, others, tuple(map(str, names or ())), has_path)


def holds_images(schema: Any) -> bool:
    """Return whether an Arrow schema has a column of images."""
    return bool(_image_columns(schema))


def _image_columns(schema: Any) -> list[str]:
    found = [name for name, feature in _features(schema).items() if feature.get("_type") == "Image"]
    return found or [f.name for f in schema if _is_struct(f.type)] or [f.name for f in schema if _is_binary(f.type)]


def field_of(schema: Any, path: AnyPath, name: str) -> Column:
    """Return the column that suits one of an Arrow schema.

    Raises:
        PrepError: there is no such column, or its type does not suit.
    """
    if name not in schema.names:
        raise field_error(name, f"{path} has no such column; it has {', '.join(schema.names)}")
    names = _features(schema).get(name, {}).get("names") or ()
    return column_of(name, schema.field(name).type, tuple(map(str, names)))


def _label_column(schema: Any, features: dict[str, dict[str, Any]], path: AnyPath, wanted: str) -> str:
    if wanted:
        if wanted not in (NO_LABELS, *schema.names):
            raise PrepError(f"--label-column {wanted}: {path} has no such column; it has {', '.join(schema.names)}")
        return wanted if wanted in schema.names else ""
    classes = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
    labels = [name for name in LABELS if name in schema.names] or (classes if len(classes) == 1 else [])
    return labels[0] if labels else ""


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the features that Hugging Face's datasets recorded for the columns."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in found.items() if isinstance(feature, dict) and name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0 and _is_binary(kind.field("bytes").type)


def _table(path: AnyPath, name: str, selection: Selection) -> Table:
    with _arrow().parquet.ParquetFile(seekable(path)) as file:
        columns = columns_of(file.schema_arrow, path, selection)
        items = list(_items(file, columns, path, name))
        labels = (
            _read_whole(file, columns.label, columns.label, len(items), path).to_pylist() if columns.label else [None] * len(items)
        )
    return columns, items, labels


def _read_whole(file: Any, name: str, part: str, rows: int, path: AnyPath) -> Any:
    """Read a column, or a part of it."""
    column = file.read([part], use_threads=False)[name]
    if len(column) != rows:
        raise PrepError(f"{path} is damaged: {part} has {len(column)} rows, its row groups {rows}; copy it again")
    return column


def _items(file: Any, columns: Columns, path: AnyPath, name: str) -> Iterator[Item]:
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    if min(groups, default=0) < 0:
        raise PrepError(f"{path} is damaged: a row group claims {min(groups)} rows; copy it again")
    sizes = even_sizes(path, sum(groups))
    paths = _read_whole(file, columns.image, f"{columns.image}.path", len(sizes), path) if columns.has_path else None
    k = 0
    for group, rows in enumerate(groups):
        for row in range(rows):
            image_path = (paths[k].as_py() or {}).get("path") if paths is not None else None
            yield row_name(name, k, image_path), sizes[k], "", ("parquet", name, columns.image, group, row)
            k += 1


def row_name(archive: str, row: int, path: Any) -> str:
    """Return the name of an input: its archive, its row, and the name of the file it was made from."""
    base = PurePosixPath(path).name if isinstance(path, str) else ""
    return f"{archive}/{row:06d}{'-' * bool(base)}{base}"


class _Rows:
    """The columns of a file that are being read."""

    def __init__(self, path: AnyPath) -> None:
        self._file = _arrow().parquet.ParquetFile(seekable(path), buffer_size=1 << 20)
        self._columns = dict[str, _Cells]()

    def get(self, column: str, group: int, row: int) -> Any:
        if column not in self._columns:
            self._columns[column] = _Cells(self._file, column)
        return self._columns[column].get(group, row)

    def close(self) -> None:
        self._file.close()


class _Cells:
    """One column, read forward a few rows at a time: a row group may be larger than memory."""

    def __init__(self, file: Any, column: str) -> None:
        self._file = file
        self._column = column
        self._group = -1  # the row group that is being read
        self._first = 0
        self._rows = list[Any]()
        self._broken = ""
        self._batches: Iterator[Any] = iter(())

    def get(self, group: int, row: int) -> Any:
        if self._group != group or row < self._first:
            self._group = group
            self._first = 0
            self._rows = []
            self._broken = ""
            self._batches = self._file.iter_batches(ROWS, row_groups=[group], columns=[self._column], use_threads=False)
        while row >= self._first + len(self._rows):
            if self._broken:
                raise CodecError(self._broken, "undecodable")
            self._first += len(self._rows)
            self._rows = []
            self._next()
        return self._rows[row - self._first]

    def _next(self) -> None:
        """Read the next rows. After a damaged page, the rest of the row group is not tried again."""
        try:
            self._rows = next(self._batches).column(0).to_pylist()
        except StopIteration:
            self._broken = "the row is not there"
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001  pyarrow may raise anything on a damaged page
            self._broken = f"the archive is damaged: {error}"


def _read(path: AnyPath, column: str, group: int, row: int) -> bytes:
    return image_bytes(open_once(path, _Rows).get(column, group, row), path)


def _column(path: AnyPath, name: str, *_: Any) -> Column:
    return field_of(_arrow().parquet.read_schema(path), path, name)


def _cell(path: AnyPath, name: str, image: str, group: int, row: int) -> Any:
    return open_once(path, _Rows).get(name, group, row)


def image_bytes(image: Any, path: AnyPath) -> bytes:
    """Return the image file of a row, from its value in the column of images. path: the archive.

    Raises:
        CodecError: the row holds no image.
    """
    if isinstance(image, dict):
        if image.get("bytes") is None and isinstance(image.get("path"), str):
            return _read_file(path.parent, image["path"])
        image = image.get("bytes")
    if image is None:
        raise CodecError("the row holds no image", "no-image")
    return bytes(image)


def _read_file(folder: AnyPath, name: str) -> bytes:
    """Read a file that a row names. It must lie below the folder of the archive."""
    target = folder / name.replace("\0", "")
    if not is_inside(target, folder) or not target.is_file():
        raise CodecError(
            f"the row has only a path, {name}, and no such file lies below the archive's folder. Write the Parquet with its images "
            f"embedded; of Hugging Face's datasets: {EMBED}",
            "missing",
        )
    return target.read_bytes()


KIND = Kind(
    "parquet",
    ends_in(ENDING),
    partial(list_arrow, _table),
    _read,
    lambda folder: files_in(folder, ENDING),
    has_columns=True,
    column=_column,
    cell=_cell,
)
