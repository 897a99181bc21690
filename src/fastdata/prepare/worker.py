"""A worker process: makes one shard after another. It owns nothing: killed at any moment, it leaves a temporary file at most.

Run by fastdata.prepare.run as `python -c "...; main(connection, status)"`; never imports torch.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import xxhash

from fastdata.errors import CodecError, StoreError
from fastdata.prepare.archives.catalog import read_source
from fastdata.prepare.images import ImageOptions, Record, prepare_image
from fastdata.prepare.sources import Source
from fastdata.store.format import WORK, shard_file, write_atomic
from fastdata.store.shards import ShardWriter

__all__ = ["STATUS", "Job", "Task", "main", "reject_of", "shard_table"]

# What a worker tells while it works: the place in its shard (-1: none), and sums over its life.
STATUS = np.dtype([("place", "<i8"), ("done", "<i8"), ("rejected", "<i8"), ("bytes", "<i8")])
SCRATCH_BYTES = 1 << 26

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Job:
    """What every task of a run shares."""

    root: str
    masks: str
    out: str
    options: ImageOptions
    fingerprint: str


@dataclass(frozen=True)
class Task:
    """One shard: its sources, and those to leave out because they took a worker down, by place, with the reason."""

    shard: int
    first: int
    sources: tuple[Source, ...]
    skip: dict[int, tuple[str, str]]


def shard_table(out: Path, shard: int) -> Path:
    """Where a finished shard's rows and rejects wait for the end of the run. Its presence says that the shard is whole."""
    return out / WORK / f"shard-{shard:05d}.json"


def main(connection: int, status: int) -> None:
    """Serve tasks until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    cv2.setNumThreads(1)
    progress = np.frombuffer(mmap.mmap(status, STATUS.itemsize), STATUS)
    scratch = np.empty(SCRATCH_BYTES, np.uint8)
    with Connection(connection) as parent:
        job: Job = parent.recv()
        while True:
            try:
                task: Task = parent.recv()
            except EOFError:
                return
            try:
                _make_shard(job, task, progress, scratch)
                parent.send(("done", task.shard))
            except Exception as error:  # noqa: BLE001  forwarded to the parent, which stops the run with it
                known = isinstance(error, (OSError, StoreError))  # such as a full disk; else it is our mistake
                parent.send(("failed", str(error) if known else traceback.format_exc()))


def _make_shard(job: Job, task: Task, progress: Array, scratch: Array) -> None:
    out, parent = Path(job.out), os.getppid()
    names = [name for name, _, _ in job.options.variants()]
    writers = [ShardWriter(out / WORK / f"{name}-{task.shard:05d}.{os.getpid()}.tmp") for name in names]
    rows: list[list[Any]] = []
    rejects: list[dict[str, Any]] = []
    classes: Counter[int] = Counter()
    try:
        for place, source in enumerate(task.sources):
            progress["place"] = place
            if os.getppid() != parent:
                sys.exit(1)  # the run was killed: nobody will take this shard
            made = _try(job, source, task.skip.get(place), scratch)
            if isinstance(made, tuple):
                rejects.append({"source": task.first + place, "name": source.name, "reason": made[0], "detail": made[1]})
                progress["rejected"] += 1
            else:
                for writer, record in zip(writers, made, strict=True):
                    writer.append(record.data)
                rows.append(
                    [task.first + place, [[r.height, r.width, len(r.data), xxhash.xxh3_64_intdigest(r.data)] for r in made]]
                )
                classes.update(made[-1].classes)
                progress["bytes"] += max(source.size, 0)
            progress["done"] += 1
        progress["place"] = -1
        files = {name: w.finish(out / shard_file(name, task.shard)) for name, w in zip(names, writers, strict=True)}
    except BaseException:
        for writer in writers:
            writer.abort()
        raise
    body = {
        "fingerprint": job.fingerprint,
        "files": {name: [total.bytes, total.xxh3_128] for name, total in files.items()},
        "rows": rows,
        "rejects": rejects,
        "classes": classes,
    }
    write_atomic(shard_table(out, task.shard), json.dumps(body).encode(), durable=False)


def _try(job: Job, source: Source, skip: tuple[str, str] | None, scratch: Array) -> list[Record] | tuple[str, str]:
    """The records of one source, or the reason and detail of its rejection. Details hold no path: a store is the same anywhere."""
    if skip is not None:
        return skip
    if source.problem:
        return source.problem, ""
    try:
        mask = (Path(job.masks) / source.mask).read_bytes() if source.mask else None
        return prepare_image(read_source(job.root, source), job.options, scratch=scratch, mask=mask)
    except Exception as error:  # noqa: BLE001  whatever a decoder throws at a bad file, the file is listed and the run goes on
        return reject_of(error)


def reject_of(error: Exception) -> tuple[str, str]:
    """A short reason and a detail for an input that could not be used."""
    if isinstance(error, CodecError):
        return error.reason, str(error)
    if isinstance(error, FileNotFoundError):
        return "missing", "the file went away after it was listed"
    if isinstance(error, OSError):
        return "unreadable", error.strerror or type(error).__name__
    if isinstance(error, MemoryError):
        return "too-large", "not enough memory to decode it"
    return "undecodable", f"{type(error).__name__}: {error}"
