"""Write a DataFrame to a file, which workers can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError
from fastdata.tables.arrow import arrow, reading
from fastdata.tables.source import BATCH_ROWS, FRAME

__all__ = ["as_file", "is_frame"]


def is_frame(source: Any) -> bool:
    """Return whether this is a pandas DataFrame, or any object that exports an Arrow stream."""
    return _is_pandas(source) or hasattr(source, "__arrow_c_stream__")


def _is_pandas(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas"


@contextmanager
def as_file(source: Any, labels: Any) -> Iterator[tuple[Path, Any]]:
    """Write a DataFrame to a file that is deleted afterwards. `labels` are passed through."""
    pa = arrow()
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        path = Path(folder) / FRAME
        with reading("the DataFrame"):
            table = pa.Table.from_pandas(source, preserve_index=False) if _is_pandas(source) else pa.table(source)
            table = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=BATCH_ROWS)
        try:
            yield path, labels
        except FastDataError as error:
            error.args = (str(error).replace(str(path), "the DataFrame"),)
            raise
