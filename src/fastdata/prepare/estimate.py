"""Estimate the cost of a run from a few of its inputs."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastdata.prepare.build_plan import build_plan, check_positive
from fastdata.prepare.plan import Work
from fastdata.prepare.splits import plan_stores
from fastdata.prepare.summary import counted
from fastdata.prepare.upload import place_of
from fastdata.remote.url import Storage, is_url
from fastdata.sources.options import StrPath
from fastdata.sources.python import share
from fastdata.sources.urls import reading_urls
from fastdata.system.machine import available_cores
from fastdata.words import human_bytes, number_of

__all__ = ["Estimate", "estimate", "stored_bytes"]

PAGE = 4096  # bytes of an LMDB page
SHARD_PAGES = 3  # two headers and the root of the tree


@dataclass
class Estimate:
    """The estimated cost of a run.

    Attributes:
        bytes: the size of the store, with LMDB's padding.
        seconds: the time on the given number of workers, without start-up.
        free_bytes: free space on the disk of OUT; None: it is a URL.
        probes: the number of inputs that were tried.
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
    """Prepare a few evenly spaced inputs in this process, write nothing, and extrapolate. The arguments are those of `prep`."""
    check_positive(workers=workers)
    found = Estimate()
    with share(source, out, options.pop("labels", None)) as (path, labels), reading_urls(storage):

        def plan(source: Any, out: Any, **options: Any) -> Work:
            return build_plan(source, out, None, storage, **options)

        for name, work in plan_stores(plan, path, out, {**options, "labels": labels}).items():
            started = time.perf_counter()
            probed = work.kind.shards.probe(work.plan, work.roots)
            found.seconds += (time.perf_counter() - started) * probed.scale / (workers or available_cores())
            found.inputs += probed.inputs
            found.bytes += int(sum(map(stored_bytes, probed.records)) * probed.scale)
            found.bytes += SHARD_PAGES * PAGE * work.plan.num_shards * len(work.plan.options.variants())
            found.probes += probed.tried
            found.rejected += probed.rejected
            found.notes += tuple(f"{name}: {note}" if name else note for note in work.notes)
            if not is_url(place_of(out)):
                disk = next(path for path in (work.out, *work.out.parents) if path.exists())
                found.free_bytes = shutil.disk_usage(disk).free
    return found


def stored_bytes(size: int) -> int:
    """Return the bytes that LMDB needs for a record: small ones share a page; large ones take whole pages and an index entry."""
    if size + 16 > PAGE // 2 - 24:
        return -(-(size + 16) // PAGE) * PAGE + 26
    return PAGE // ((PAGE - 16) // (size + 18))
