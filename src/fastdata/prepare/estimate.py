"""Estimate the cost of a run from a few of its inputs."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fastdata.prepare.build_plan import build_plan, check_positive, plan_stores
from fastdata.prepare.plan import Work
from fastdata.prepare.run import job_of
from fastdata.prepare.summary import counted
from fastdata.prepare.upload import place_of
from fastdata.prepare.worker import Progress, Task, make_shard
from fastdata.remote.url import Storage, is_url
from fastdata.sources.base import release
from fastdata.sources.options import StrPath
from fastdata.sources.python import share
from fastdata.sources.urls import reading_urls
from fastdata.store.files import WORK
from fastdata.system.machine import available_cores
from fastdata.words import human_bytes, number_of

__all__ = ["Estimate", "estimate"]

PROBES, PROBE_S = 32, 3.0  # the most inputs that are tried, and the seconds for them
EMPTY_BYTES = 3 << 12  # of a shard: two headers and the root of the tree


@dataclass
class Estimate:
    """The estimated cost of a run: `bytes` of the store, `seconds` without start-up, and from how many `probes` this was computed.

    free_bytes: free space on the disk of OUT; None: it is a URL.
    """

    inputs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    free_bytes: int | None = None
    probes: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the disk has room for the store."""
        return self.free_bytes is None or self.free_bytes > self.bytes

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        yield f"{number_of(self.inputs, 'input')}: about {human_bytes(self.bytes)} and {self.seconds:.0f} s"
        if self.rejected:
            yield f"of {self.probes} that were tried, rejected: {counted(self.rejected)}"
        yield from self.notes
        if self.free_bytes is not None:
            yield f"{human_bytes(self.free_bytes)} are free on that disk: {'enough' if self.fits else 'NOT ENOUGH'}"


def estimate(
    source: Any,
    out: StrPath | None = None,
    *,
    workers: int | None = None,
    storage: Storage | None = None,
    **options: Any,
) -> Estimate:
    """Prepare a few inputs in this process, keep nothing, and extrapolate. The arguments are those of `prep`."""
    check_positive(workers=workers)
    found = Estimate()
    with share(source, out, options.pop("labels", None)) as (path, labels), reading_urls(storage):

        def plan(source: Any, out: Any, **options: Any) -> Work:
            return build_plan(source, out, storage, **options)

        for name, work in plan_stores(plan, path, out, {**options, "labels": labels}).items():
            _add(found, work, workers or available_cores())
            found.notes += tuple(f"{name}: {note}" if name else note for note in work.plan.notes)
            if not is_url(place_of(out)):
                disk = next(path for path in (work.out, *work.out.parents) if path.exists())
                found.free_bytes = shutil.disk_usage(disk).free
    return found


def _add(found: Estimate, work: Work, workers: int) -> None:
    """Prepare an input of a plan, then as many as some seconds allow, and add what all cost to an estimate."""
    plan, sources = work.plan, work.plan.sources
    places = Random(0).sample(range(len(sources)), min(PROBES, len(sources)))
    tried, count, documents, seconds, size = tuple[Any, ...](), 1, 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="fastdata-") as folder:
        (Path(folder) / WORK).mkdir()
        job = job_of(work, Path(folder), workers)
        while places and count:
            few = tuple(sources[places.pop()] for _ in range(min(count, len(places))))
            began = time.perf_counter()
            made = make_shard(job, Task(0, 0, few, {}), Progress([0] * 4))
            seconds, size = time.perf_counter() - began, sum(total.bytes for _, total in made.files.values())
            table = json.loads(made.table)
            documents = table["kept"] + len(table["rejects"])
            found.rejected.update(reject["reason"] for reject in table["rejects"])
            found.probes += documents
            tried, count = few, 0 if tried else max(1, int(PROBE_S / seconds))
    release()
    amount = sum(max(source.size, 0) for source in tried) if plan.options.unit == "B" else len(tried)
    scale, empty = sum(plan.amounts) / max(amount, 1), EMPTY_BYTES * len(plan.options.variants())
    found.seconds += seconds * scale / workers
    found.inputs += round(len(sources) * documents / max(len(tried), 1))
    found.bytes += int((size - empty) * scale) + empty * plan.num_shards
