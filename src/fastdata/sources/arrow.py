"""Arrow's own files with a column of images, as Hugging Face's datasets caches and saves them: streams, and files with an index.

Needs pyarrow.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fastdata.errors import CodecError, MissingExtraError, PrepError
from fastdata.sources.archive import Chosen, Folder, Item, Kind, alone, held, in_order, shares, unreadable
from fastdata.sources.inputs import SPLITS, SourceList, splits_error
from fastdata.sources.labels import Value
from fastdata.sources.parquet import columns_of, image_bytes, label_values, left_out, numbered

__all__ = ["KIND"]

ENDING = ".arrow"
SPLITS_FILE = "dataset_dict.json"  # beside the folders of the splits, where datasets saved several


def _takes(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ENDING


def _inside(folder: Folder) -> list[Path]:
    """Without the results of `map`, which datasets puts beside what they were made of."""
    if SPLITS_FILE in folder.files and len(folder.folders) > 1:
        raise splits_error(folder.path, {name: str(folder.path / name) for name in folder.folders})
    files = [path for path in alone(folder, ENDING) if not path.name.startswith("cache-")]
    splits: dict[str, str] = {}
    for path in files:
        for part in set(re.split(r"[-_.]", path.stem)) & SPLITS:
            splits[part] = str(folder.path / f"*{part}*{ENDING}")
    if len(splits) > 1:
        raise splits_error(folder.path, splits)
    return files


class _Table:
    """A file, mapped."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError("pyarrow") from error
        self._map = pyarrow.memory_map(str(path))
        try:
            self.rows = pyarrow.ipc.open_file(self._map).read_all()
        except pyarrow.ArrowInvalid:  # no index at its end: a stream
            self._map.seek(0)
            self.rows = pyarrow.ipc.open_stream(self._map).read_all()

    def close(self) -> None:
        self._map.close()


def _inputs(root: Path, files: list[Path], chosen: Chosen) -> SourceList:
    items, labels, before = list[Item](), list[Value](), None
    for path in files:
        try:
            rows = held(path, _Table).rows
            columns = columns_of(rows.schema, path, chosen)
            if before not in (None, columns):
                raise PrepError(f"{path} has other columns of images and labels, or other classes, than {files[0]}: prepare each")
            before, name, sizes = columns, str(path.relative_to(root)), shares(path.stat().st_size, len(rows))
            given = _paths(rows[columns.image]) if columns.has_path else [None] * len(rows)
            items += [(numbered(name, k, given[k]), sizes[k], "", ("arrow", name, columns.image, k)) for k in range(len(rows))]
            labels += label_values(rows[columns.label].to_pylist(), columns.label) if columns.label else [None] * len(rows)
        except (OSError, ValueError) as error:  # as are pyarrow's own
            raise unreadable(path, error) from error
    assert before is not None  # there is at least one file
    by = f"column {before.label}" if before.label else ""
    return in_order(root, items, labels, before.names, by=by, sure=bool(chosen.label), notes=left_out(before))


def _paths(images: Any) -> list[Any]:
    from pyarrow import compute

    return list(compute.struct_field(images, "path").to_pylist())


def _read(path: Path, column: str, row: int) -> bytes:
    try:
        found = held(path, _Table).rows[column][row].as_py()
    except (ValueError, IndexError, KeyError) as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None
    return image_bytes(found, path)


KIND = Kind("arrow", _takes, _inside, _inputs, _read, has_columns=True)
