"""Arrow files with a column of images, as Hugging Face's datasets caches and saves them: streams, and files with an index.

Needs pyarrow.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

from fastdata.errors import CodecError, needs
from fastdata.sources.archive import Folder, Item, Kind, Selection, Table, ends_in, even_sizes, files_in, open_once
from fastdata.sources.inputs import SPLITS, splits_error
from fastdata.sources.parquet import columns_of, field_of, image_bytes, list_arrow, row_name
from fastdata.sources.urls import AnyPath
from fastdata.store.column import Column

__all__ = ["KIND"]

ENDING = ".arrow"
SPLITS_FILE = "dataset_dict.json"  # next to the folders of the splits, if datasets saved several


def _inside(folder: Folder) -> list[AnyPath]:
    """Leave out the caches of `map`, which datasets writes next to the files they were computed from."""
    if SPLITS_FILE in folder.files and len(folder.folders) > 1:
        raise splits_error(folder.path, {name: str(folder.path / name) for name in folder.folders})
    files = [path for path in files_in(folder, ENDING) if not path.name.startswith("cache-")]
    splits: dict[str, str] = {}
    for path in files:
        for part in set(re.split(r"[-_.]", path.stem)) & SPLITS:
            splits[part] = str(folder.path / f"*{part}*{ENDING}")
    if len(splits) > 1:
        raise splits_error(folder.path, splits)
    return files


class _File:
    """A memory-mapped file and its rows."""

    def __init__(self, path: AnyPath) -> None:
        with needs("pyarrow"):
            import pyarrow
        self._map = pyarrow.memory_map(os.fspath(path))
        try:
            self.rows = pyarrow.ipc.open_file(self._map).read_all()
        except pyarrow.ArrowInvalid:  # without an index at its end, the file is a stream
            self._map.seek(0)
            self.rows = pyarrow.ipc.open_stream(self._map).read_all()
        self._columns = dict[str, Any]()

    def column(self, name: str) -> Any:
        """Return a column, checked at first: pyarrow follows offsets unchecked, and damaged ones would kill the process.

        Raises:
            ValueError: it is damaged.
        """
        if name not in self._columns:
            self.rows[name].validate(full=True)
            self._columns[name] = self.rows[name]
        return self._columns[name]

    def close(self) -> None:
        self._map.close()


def _table(path: AnyPath, name: str, selection: Selection) -> Table:
    file = open_once(path, _File)
    rows = file.rows
    columns = columns_of(rows.schema, path, selection)
    sizes = even_sizes(path, len(rows))
    paths = _paths(file.column(columns.image)) if columns.has_path else [None] * len(rows)
    items: list[Item] = [(row_name(name, k, paths[k]), sizes[k], "", ("arrow", name, columns.image, k)) for k in range(len(rows))]
    return columns, items, file.column(columns.label).to_pylist() if columns.label else [None] * len(rows)


def _paths(images: Any) -> list[Any]:
    from pyarrow import compute

    return list(compute.struct_field(images, "path").to_pylist())


def _read(path: AnyPath, column: str, row: int) -> bytes:
    return image_bytes(_cell(path, column, column, row), path)


def _cell(path: AnyPath, name: str, image: str, row: int) -> Any:
    try:
        return open_once(path, _File).column(name)[row].as_py()
    except (ValueError, IndexError, KeyError) as error:
        raise CodecError(f"the archive is damaged: {error}", "undecodable") from None


def _column(path: AnyPath, name: str, *_: Any) -> Column:
    return field_of(open_once(path, _File).rows.schema, path, name)


KIND = Kind("arrow", ends_in(ENDING), partial(list_arrow, _table), _read, _inside, has_columns=True, column=_column, cell=_cell)
