"""prep and estimate of a table: a Parquet or CSV file, or a DataFrame."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.machine import available_cores
from fastdata.prepare.estimate import Estimate
from fastdata.prepare.job import Summary, carry_out, check_positive, resolve
from fastdata.prepare.plan import Plan
from fastdata.prepare.table.arrow import arrow, reading
from fastdata.prepare.table.options import TableOptions, plan_table
from fastdata.prepare.table.source import BATCH_ROWS

__all__ = ["estimate_table", "prep_table", "table_arguments"]

FRAME = "DataFrame.arrow"
BYTES_PER_S = 150e6  # of stored columns, a core

Names = str | Sequence[str] | None


def table_arguments(prep: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Of the arguments of prep, those that are about tables.

    Raises:
        ValueError: another is given too.
    """
    wanted = inspect.signature(prep_table).parameters
    for name, parameter in inspect.signature(prep).parameters.items():
        if name not in wanted and given[name] != parameter.default:
            raise ValueError(f"{name} is {given[name]!r}, but SOURCE is a table, and {name} is about other data; leave it out")
    return {name: given[name] for name in wanted}


def prep_table(
    source: Any,
    out: str | os.PathLike[str] | None,
    *,
    target: Names,
    category: Names,
    drop: Names,
    classes: str | os.PathLike[str] | None,
    workers: int | None,
    overwrite: bool,
    timeout: float,
    progress: str,
) -> Summary:
    """As fastdata.prep, whose arguments these are."""
    options = TableOptions(_names(target), _names(category), _names(drop))
    with _as_file(source) as path:
        root, folder = _places(source, path, out)
        plan = plan_table(path, options, None if classes is None else Path(classes))
        return carry_out(
            plan, (root, root), folder, workers=workers, overwrite=overwrite, timeout=timeout, progress=progress, skipped={}
        )


def estimate_table(
    source: Any,
    out: str | os.PathLike[str] | None,
    *,
    target: Names,
    category: Names,
    drop: Names,
    classes: str | os.PathLike[str] | None,
    workers: int | None,
) -> Estimate:
    """What the store will take; the table is read once, so that the bytes are nearly exact."""
    check_positive(workers=workers)
    with _as_file(source) as path:
        _, folder = _places(source, path, out)
        started = time.perf_counter()
        plan = plan_table(
            path, TableOptions(_names(target), _names(category), _names(drop)), None if classes is None else Path(classes)
        )
        seconds = (time.perf_counter() - started) / (workers or available_cores())
    disk = next(p for p in (folder, *folder.parents) if p.exists())
    rows = sum(piece.rows for piece in plan.sources)
    return Estimate(rows, _bytes(plan), seconds, shutil.disk_usage(disk).free, 0, {}, "rows")


def _bytes(plan: Plan) -> int:
    widths = [1 if is_mask else np.dtype(column.dtype).itemsize for column, is_mask in plan.shared.records()]
    return sum(piece.rows * sum(widths) + 4096 * (len(widths) + 3) for piece in plan.sources)


def _names(given: Names) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _places(source: Any, path: Path, out: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    if out is None and not isinstance(source, str | os.PathLike):
        raise ValueError("out is None, but a DataFrame has no name to make one of: give the store's, such as out='table.fds'")
    return resolve(path, out)


@contextmanager
def _as_file(source: Any) -> Iterator[Path]:
    """A path as it is; a DataFrame in a file, for the time of the run, that the workers read."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise PrepError(
                f"SOURCE {source} {'is not a file' if path.exists() else 'does not exist'}; give one file that holds a table"
            )
        yield path
        return
    pa = arrow()
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        path = Path(folder) / FRAME
        with reading("the DataFrame"):
            if type(source).__module__.partition(".")[0] == "pandas":
                table = pa.Table.from_pandas(source, preserve_index=False)
            else:
                table = pa.table(source)
            table = table.replace_schema_metadata(None).unify_dictionaries()
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table.combine_chunks(), max_chunksize=BATCH_ROWS)
        yield path
