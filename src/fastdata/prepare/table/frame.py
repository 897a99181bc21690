"""A DataFrame as a file, which workers can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError
from fastdata.prepare.table.arrow import arrow, reading
from fastdata.prepare.table.source import BATCH_ROWS

__all__ = ["as_file"]

FRAME = "DataFrame.arrow"


@contextmanager
def as_file(source: Any, out: Any) -> Iterator[Any]:
    """A path as it is. A DataFrame, of pandas or of whatever exports Arrow's stream, in a file that is gone afterwards."""
    if isinstance(source, str | os.PathLike):
        yield source
        return
    pandas = type(source).__module__.partition(".")[0] == "pandas"
    if not pandas and not hasattr(source, "__arrow_c_stream__"):
        raise TypeError(f"source is a {type(source).__name__}, but must be a path or a DataFrame")
    if out is None:
        raise ValueError("out is None, but a DataFrame has no name to make one of: give the store's, such as out='table.fds'")
    pa = arrow()
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        path = Path(folder) / FRAME
        with reading("the DataFrame"):
            table = pa.Table.from_pandas(source, preserve_index=False) if pandas else pa.table(source)
            table = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=BATCH_ROWS)
        try:
            yield path
        except FastDataError as error:
            error.args = (str(error).replace(str(path), "the DataFrame"),)
            raise
