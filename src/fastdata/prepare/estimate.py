"""Estimate the cost of a run from a few of its inputs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.machine import available_cores
from fastdata.prepare.build_plan import build_plan, check_positive
from fastdata.prepare.plan import Work
from fastdata.prepare.run import BACKLOG
from fastdata.prepare.splits import plan_stores
from fastdata.prepare.upload import place_of
from fastdata.remote.url import Storage, is_url
from fastdata.sources.options import StrPath
from fastdata.sources.python import share
from fastdata.sources.urls import reading_urls

__all__ = ["Estimate", "estimate", "stored_bytes"]

PAGE = 4096  # bytes of an LMDB page
SHARD_PAGES = 3  # two headers and the root of the tree


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run.

    Attributes:
        inputs: about how many images, documents or rows there are.
        bytes: the size of the store, with LMDB's padding.
        seconds: the time on the given number of workers, without start-up.
        free_bytes: free space on the disk that would hold the store, or on a way to object storage, some shards.
        probes: the number of inputs that were tried.
        rejected: count of rejected probes by reason.
        notes: what the labels are, where they come from, and what is not stored.
        waiting: if OUT is in object storage, the most bytes of shards that wait on the disk to be sent; else 0.
    """

    inputs: int
    bytes: int
    seconds: float
    free_bytes: int
    probes: int
    rejected: dict[str, int]
    notes: tuple[str, ...] = ()
    waiting: int = 0

    @property
    def fits(self) -> bool:
        """Whether the disk has room for the store, or for what waits to be sent."""
        return self.free_bytes > (self.waiting or self.bytes)


def estimate(
    source: Any,
    out: StrPath | None = None,
    *,
    workers: int | None = None,
    storage: Storage | None = None,
    **options: Any,
) -> Estimate:
    """Prepare a few evenly spaced inputs in this process, write nothing, and extrapolate. The arguments are those of `prep`."""
    check_positive(workers=workers)
    cores = workers or available_cores()
    with share(source, out, options.pop("labels", None)) as (path, labels), reading_urls(storage):

        def plan(source: Any, out: Any, **options: Any) -> Work:
            return build_plan(source, out, None, storage, **options)

        works = plan_stores(plan, path, out, {**options, "labels": labels})
        found = [_estimate(work, cores, remote=is_url(place_of(out))) for work in works.values()]
    whole = sum((Counter(one.rejected) for one in found), Counter[str]())
    notes = tuple(f"{name}: {note}" if name else note for name, one in zip(works, found, strict=True) for note in one.notes)
    inputs, size, probes, waiting = (
        sum(values) for values in zip(*((e.inputs, e.bytes, e.probes, e.waiting) for e in found), strict=True)
    )
    return Estimate(inputs, size, sum(e.seconds for e in found), found[0].free_bytes, probes, dict(whole), notes, waiting)


def _estimate(work: Work, cores: int, *, remote: bool) -> Estimate:
    """Estimate one store."""
    plan, started = work.plan, time.perf_counter()
    probed = work.kind.probe(plan, work.roots)
    seconds = (time.perf_counter() - started) * probed.scale / cores
    fixed = SHARD_PAGES * PAGE * plan.num_shards * len(plan.options.variants())
    place = Path(tempfile.gettempdir()) if remote else work.out
    disk = next(p for p in (place, *place.parents) if p.exists())
    size = int(sum(map(stored_bytes, probed.records)) * probed.scale) + fixed
    shards = min(plan.num_shards, (BACKLOG + 1) * cores)
    waiting = -(-size * shards // plan.num_shards) if remote else 0
    free = shutil.disk_usage(disk).free
    return Estimate(probed.inputs, size, seconds, free, probed.tried, dict(probed.rejected), work.notes, waiting)


def stored_bytes(size: int) -> int:
    """Return the bytes that LMDB needs for a record: small ones share a page; large ones take whole pages and an index entry."""
    if size + 16 > PAGE // 2 - 24:
        return -(-(size + 16) // PAGE) * PAGE + 26
    return PAGE // ((PAGE - 16) // (size + 18))
