"""A worker process, which makes the files of one shard after another. Its parent publishes them.

Killed at any moment, it leaves at most temporary files.
fastdata.prepare.spawn starts it as `python -c "...; main(connection, status)"`. It never imports torch.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdata import kinds
from fastdata.errors import LACKS_MEMORY, CodecError, PrepError, RemoteError, StoreError, lacking, may_pass
from fastdata.prepare.spawn import DONE, EXTRA_S, POSITION, REJECTED, STATUS_BYTES
from fastdata.sources.base import release
from fastdata.sources.urls import stamps_of, to_path, use_client
from fastdata.store.columns import save_values
from fastdata.store.files import COLUMNS, WORK, FileSum, publish, shard_file, write_atomic
from fastdata.store.writer import ShardWriter
from fastdata.system.children import end_with

if TYPE_CHECKING:
    from fastdata.prepare.plan import PrepareRun  # which each worker would pay for

PAUSES_S = 0.5, 2.0, 8.0  # before a shard is made again whose inputs could not be read
ORDINARY_BYTES = 256 << 20  # of memory, which an image of 50 megapixels takes


@dataclass(frozen=True)
class ShardTask:
    """A shard: its inputs, the index of the first, and the positions of inputs to leave out, which crashed or hung workers."""

    shard: int
    first: int
    sources: tuple[Any, ...]
    skip: dict[int, tuple[str, str]]


class ProgressReport:
    """Reports to the parent through shared memory. An input, or some documents, are left out if they crash workers."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def at(self, position: int, *, extra_s: int = 0) -> None:
        """Begin an input of the shard, or none for -1. It may take `extra_s` seconds longer than the timeout."""
        self._status[EXTRA_S] = extra_s
        self._status[POSITION] = position

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock of the timeout while the body waits for the network."""
        position = self._status[POSITION]
        self._status[POSITION] = -1
        try:
            yield
        finally:
            self._status[POSITION] = position

    def add(self, *, finished: int = 0, rejected: int = 0) -> None:
        self._status[DONE] += finished
        self._status[REJECTED] += rejected


class Writers:
    """The files of one shard: one for each variant, and one for all columns. A context manager that removes them on an error."""

    def __init__(self, job: PrepareRun, shard: int) -> None:
        self._job = job
        self._shard = shard
        self._rows = list[Sequence[Any]]()
        self._writers = {name: ShardWriter(self._temporary(name)) for name, _, _ in job.plan.options.variants()}

    def _temporary(self, name: str) -> Path:
        return Path(self._job.out, WORK, f"{name}-{self._shard:05d}.{self._job.mark}-{os.getpid()}.tmp")

    def append(self, records: Sequence[Any], values: Sequence[Any] = ()) -> None:
        """Append one record to each variant, and one value to each column."""
        self._rows.append(values)
        for writer, record in zip(self._writers.values(), records, strict=True):
            writer.append(record)

    def finish(self, table: dict[str, Any]) -> tuple[dict[str, Path], bytes]:
        """Complete the files, and return them by the names of variants and of columns, and the shard's table.

        table: what the kind of data adds to the shard's table.
        """
        plan, sums, indices = self._job.plan, dict[str, FileSum](), dict[str, str]()
        for name, writer in self._writers.items():
            sums[name], rows = writer.finish()
            indices[name] = base64.b64encode(rows.tobytes()).decode()
        if plan.columns:
            sums[COLUMNS] = save_values(plan.columns, self._rows, self._temporary(COLUMNS))
        files = {name: [total.bytes, total.xxh3_128] for name, total in sums.items()}
        body = {"fingerprint": plan.fingerprint, "files": files, "indices": indices, **table}
        return {name: self._temporary(name) for name in sums}, json.dumps(body).encode()

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for writer in self._writers.values() if error is not None else ():
            writer.abort()


def shard_path(out: Path, name: str, shard: int) -> Path:
    """Return the path of a shard's file of a variant, or of all columns."""
    return out / WORK / f"{COLUMNS}-{shard:05d}.npz" if name == COLUMNS else out / shard_file(name, shard)


def shard_table(out: Path, shard: int) -> Path:
    """Return the path of a finished shard's rows and rejects. The file exists only if the shard is complete."""
    return out / WORK / f"shard-{shard:05d}.json"


def _has_memory(error: BaseException | None) -> bool:
    """Return whether there is memory for an ordinary input, after freeing that of the input that led to an error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    try:
        mmap.mmap(-1, ORDINARY_BYTES).close()
    except (OSError, MemoryError):
        return False
    return True


def main(connection: int, status: int, alive: int) -> None:
    """Serve tasks until the parent hangs up. alive: a pipe whose other end is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    end_with(alive)
    progress = ProgressReport(memoryview(mmap.mmap(status, STATUS_BYTES)).cast("q"))
    with Connection(connection) as parent, suppress(EOFError, ConnectionError):  # the parent closed the connection or died
        job: PrepareRun | str = parent.recv()
        while isinstance(job, str):  # a kind of data, of which the parent plans a store
            kinds.find(job).module("shards")
            job = parent.recv()
        use_client(job.storage, progress.waiting)
        while True:
            task: ShardTask = parent.recv()
            try:
                parent.send(("done", make_shard(job, task, progress)))
            except Exception as error:  # noqa: BLE001  the parent raises it and stops the run
                known = isinstance(error, (OSError, StoreError, PrepError))  # such as a full disk; anything else is a bug
                parent.send(("failed", str(error) if known else lacking(error) or traceback.format_exc()))


def make_shard(job: PrepareRun, task: ShardTask, progress: ProgressReport) -> tuple[dict[str, Path], bytes]:
    """Make the files and the table of a shard. Try again if inputs cannot be read for a reason that may pass."""
    pauses_s = [*PAUSES_S]
    while True:
        try:
            with Writers(job, task.shard) as writers:
                table = job.kind.module("shards").make_shard(job, task, writers, progress)
                progress.at(-1)
                _check_unchanged(job, task)
                return writers.finish(table)
        except _DiskError:
            if not pauses_s:
                raise
            progress.at(-1)
            release()  # files that are open may be stale
            time.sleep(pauses_s.pop(0))


def _check_unchanged(job: PrepareRun, task: ShardTask) -> None:
    """Raise a PrepError if a file that contains inputs was replaced after they were listed."""
    root, names = to_path(job.plan.roots[0]), [*dict.fromkeys(source.container for source in task.sources if source.container)]
    for name, stamp in zip(names, stamps_of([root / name for name in names]), strict=True):
        if stamp != tuple(job.plan.stamps[name]):
            raise PrepError(f"{root / name} changed after its inputs were listed: start again with --overwrite or another OUT")


def publish_shard(out: Path, shard: int, files: dict[str, Path], table: bytes) -> None:
    """Publish the files of a shard, then its table, which marks it as complete."""
    for name, path in files.items():
        publish(path, shard_path(out, name, shard))
    write_atomic(shard_table(out, shard), table, durable=False)


class _DiskError(StoreError):
    """An input cannot be read for a reason that may pass."""


def reject_of(error: Exception) -> tuple[str, str]:
    """Return a short reason and a detail for an input that could not be used.

    Raises:
        RemoteError, PrepError: the error is one of these, which say nothing about the input.
        StoreError: open files or memory ran out, or a disk fails. Such an error would reject other inputs too.
    """
    if isinstance(error, RemoteError | PrepError | _DiskError):
        raise error
    if found := lacking(error):
        if found != LACKS_MEMORY or not _has_memory(error):
            raise StoreError(found) from error
        return "too-large", "not enough memory to decode it"
    if isinstance(error, CodecError):
        return error.reason, str(error)
    if isinstance(error, FileNotFoundError):
        return "missing", "the file went away after it was listed"
    if isinstance(error, OSError):
        if may_pass(error):
            raise _DiskError(f"an input cannot be read: {error}: is its disk there?") from error
        return "unreadable", error.strerror or type(error).__name__
    return "undecodable", f"{type(error).__name__}: {error}"
