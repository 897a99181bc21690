"""Parquet tables with a column of images, as Hugging Face's datasets have them: a struct of bytes and path, or bytes alone.

Needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fastdata.errors import CodecError, MissingExtraError, PrepError
from fastdata.sources.archive import Chosen, Folder, Item, Kind, alone, held, in_order, shares, unreadable
from fastdata.sources.inputs import SourceList
from fastdata.sources.labels import Value, text_label
from fastdata.sources.notes import not_stored
from fastdata.sources.options import NO_LABELS

__all__ = ["KIND", "Columns", "columns_of", "image_bytes", "label_values", "left_out", "numbered"]

LABELS = ("label", "labels", "fine_label", "class", "cls", "target", "y")
EMBED = 'dataset.with_format("arrow").map(datasets.table.embed_table_storage, batched=True).to_parquet(PATH)'
ROWS = 16  # that are in memory at once


class Columns(NamedTuple):
    """Which columns count, and what the classes are called. label: "" where there is none. others: that are not stored."""

    image: str
    label: str
    names: tuple[str, ...]
    has_path: bool
    others: tuple[str, ...]


def _takes(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".parquet"


def _inside(folder: Folder) -> list[Path]:
    return alone(folder, ".parquet")


def _arrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow") from error
    return pyarrow


def _inputs(root: Path, files: list[Path], chosen: Chosen) -> SourceList:
    items, labels, before = list[Item](), list[Value](), None
    arrow = _arrow()
    for path in files:
        try:
            with arrow.parquet.ParquetFile(path) as table:
                columns = columns_of(table.schema_arrow, path, chosen)
                if before not in (None, columns):
                    raise PrepError(
                        f"{path} has other columns of images and labels, or other classes, than {files[0]}; prepare them apart"
                    )
                before = columns
                items += _items(table, columns, path, str(path.relative_to(root)))
                labels += _labels(table, columns)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise unreadable(path, error) from error
    assert before is not None  # there is at least one file
    by = f"column {before.label}" if before.label else ""
    return in_order(root, items, labels, before.names, by=by, sure=bool(chosen.label), notes=left_out(before))


def left_out(columns: Columns) -> tuple[str, ...]:
    if not columns.others:
        return ()
    label = f", labels from {columns.label}" if columns.label else ""
    return (not_stored(columns.others, f"images come from {columns.image}{label}"),)


def columns_of(schema: Any, path: Path, chosen: Chosen) -> Columns:
    """Which columns of an Arrow schema count.

    Raises:
        PrepError: there is no column of images, or there are several, or none of a wanted name.
    """
    key = chosen.key
    features = _features(schema)
    found = [name for name, feature in features.items() if feature.get("_type") == "Image"]
    found = found or [f.name for f in schema if _is_struct(f.type)] or [f.name for f in schema if _is_binary(f.type)]
    if key:
        if key not in schema.names or not (_is_struct(schema.field(key).type) or _is_binary(schema.field(key).type)):
            raise PrepError(f"{path} has no column {key!r} of images; it has {', '.join(map(repr, found)) or 'none'}")
        found = [key]
    if len(found) > 1:
        found = [name for name in found if name in ("image", "img")] or found
    if len(found) != 1:
        what = f"several: {', '.join(found)}; name one as {path}::{found[0]}" if found else f"none: {', '.join(schema.names)}"
        what += "" if found else "; of a table, name what is to be learnt with --target COLUMN"
        raise PrepError(f"{path}: a column of images (a struct of bytes and path, or binary) is needed, but there are {what}")
    image = schema.field(found[0]).type
    label = _label_column(schema, features, path, chosen.label)
    names = features.get(label, {}).get("names")
    has_path = _is_struct(image) and image.get_field_index("path") >= 0
    others = tuple(name for name in schema.names if name not in (found[0], label))
    return Columns(found[0], label, tuple(map(str, names or ())), has_path, others)


def _label_column(schema: Any, features: dict[str, dict[str, Any]], path: Path, wanted: str) -> str:
    if wanted:
        if wanted not in (NO_LABELS, *schema.names):
            raise PrepError(f"--label-column {wanted}: {path} has no such column; it has {', '.join(schema.names)}")
        return wanted if wanted in schema.names else ""
    classes = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
    labels = [name for name in LABELS if name in schema.names] or (classes if len(classes) == 1 else [])
    return labels[0] if labels else ""


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What Hugging Face's datasets says of the columns."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in found.items() if isinstance(feature, dict) and name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0 and _is_binary(kind.field("bytes").type)


def _items(table: Any, columns: Columns, path: Path, name: str) -> Iterator[Item]:
    count = table.metadata.num_rows
    sizes, k = shares(path.stat().st_size, count), 0
    paths = table.read([f"{columns.image}.path"], use_threads=False)[columns.image] if columns.has_path else None
    for group in range(table.num_row_groups):
        for row in range(table.metadata.row_group(group).num_rows):
            given = (paths[k].as_py() or {}).get("path") if paths is not None else None
            yield numbered(name, k, given), sizes[k], "", ("parquet", name, columns.image, group, row)
            k += 1


def numbered(archive: str, row: int, given: Any) -> str:
    """The name of an input: of the archive, the row, and the file that it once was."""
    base = PurePosixPath(given).name if isinstance(given, str) else ""
    return f"{archive}/{row:06d}{'-' * bool(base)}{base}"


def _labels(table: Any, columns: Columns) -> Iterator[Value]:
    if not columns.label:
        return iter([None] * table.metadata.num_rows)
    return label_values(table.read([columns.label], use_threads=False)[columns.label].to_pylist(), columns.label)


def label_values(values: list[Any], column: str) -> Iterator[Value]:
    """Labels as Python values, in a column of that name."""
    for value in values:
        if isinstance(value, float):
            yield (value,)
        elif isinstance(value, list):
            if not all(isinstance(v, int | float) for v in value):
                raise PrepError(
                    f"the label column {column} holds lists of something else than numbers; name another with "
                    f"--label-column, or {NO_LABELS}"
                )
            yield tuple(map(float, value))
        elif value is None or isinstance(value, int):
            yield value
        else:
            yield text_label(str(value))


class _Rows:
    """One column of a file, read forward a few rows at a time: a row group may be larger than memory."""

    def __init__(self, path: Path) -> None:
        self._table = _arrow().parquet.ParquetFile(path, buffer_size=1 << 20)
        self._place: tuple[str, int] = ("", -1)
        self._first, self._rows, self._broken = 0, list[Any](), ""
        self._batches: Iterator[Any] = iter(())

    def get(self, column: str, group: int, row: int) -> Any:
        if self._place != (column, group) or (row < self._first):
            self._place, self._first, self._rows, self._broken = (column, group), 0, [], ""
            self._batches = self._table.iter_batches(ROWS, row_groups=[group], columns=[column], use_threads=False)
        while row >= self._first + len(self._rows):
            if self._broken:
                raise CodecError(self._broken, "undecodable")
            self._first += len(self._rows)
            self._rows = []
            self._next()
        return self._rows[row - self._first]

    def _next(self) -> None:
        """The next rows; of a row group that is damaged, nothing behind that is tried again."""
        try:
            self._rows = next(self._batches).column(0).to_pylist()
        except StopIteration:
            self._broken = "the row is not there"
        except Exception as error:  # noqa: BLE001  whatever pyarrow says of a damaged page
            self._broken = f"the archive is damaged: {error}"

    def close(self) -> None:
        self._table.close()


def _read(path: Path, column: str, group: int, row: int) -> bytes:
    return image_bytes(held(path, _Rows).get(column, group, row), path)


def image_bytes(found: Any, path: Path) -> bytes:
    """Of a row's value in the column of images, of the archive `path`.

    Raises:
        CodecError: it holds none.
    """
    if isinstance(found, dict):
        if found.get("bytes") is None and isinstance(found.get("path"), str):
            return _beside(path.parent, found["path"])
        found = found.get("bytes")
    if found is None:
        raise CodecError("the row holds no image", "no-image")
    return bytes(found)


def _beside(folder: Path, name: str) -> bytes:
    """A file that the row only names. It has to lie below the folder of the archive."""
    target = (folder / name.replace("\0", "")).resolve()
    if not target.is_relative_to(folder.resolve()) or not target.is_file():
        raise CodecError(
            f"the row has only a path, {name}, and no such file lies below the archive's folder. Write the Parquet with its images "
            f"embedded; of Hugging Face's datasets: {EMBED}",
            "missing",
        )
    return target.read_bytes()


KIND = Kind("parquet", _takes, _inside, _inputs, _read, has_columns=True)
