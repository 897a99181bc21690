"""estimate: what a run would cost, from a few of its inputs."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2

from fastdata.machine import available_cores
from fastdata.prepare.images import ImageOptions, prepare_image
from fastdata.prepare.job import as_sizes, check_positive, mask_options, resolve
from fastdata.prepare.kinds import kind_of
from fastdata.prepare.pairs import with_masks
from fastdata.prepare.plan import make_plan
from fastdata.prepare.sources import list_sources
from fastdata.prepare.worker import reject_of

__all__ = ["Estimate", "estimate"]

PROBES = 32
PAGE = 4096  # of LMDB
SHARD_PAGES = 3  # a shard's two heads and the root of its tree


@dataclass(frozen=True)
class Estimate:
    """Bytes on disk and seconds of the whole run, the free bytes of the disk, and what became of the probes.

    Attributes:
        images: inputs in the plan.
        bytes: with LMDB's padding.
        seconds: on the given workers, start-up aside.
        free_bytes: of the disk that would hold the store.
        probes: inputs that were tried.
        rejected: of these, by reason.
        what: "images" or "rows".
    """

    images: int
    bytes: int
    seconds: float
    free_bytes: int
    probes: int
    rejected: dict[str, int]
    what: str = "images"


def estimate(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    size: int | Sequence[int] | None = None,
    labels: str | os.PathLike[str] | None = None,
    classes: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_suffix: str = "",
    mask_bits: int = 8,
    palette: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    target: str | Sequence[str] | None = None,
    category: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    **options: Any,
) -> Estimate:
    """Prepare up to 32 evenly spaced inputs in this process, write nothing, and scale up. Arguments as for `prep`."""
    if kind_of(source, target, category, drop) == "table":
        from fastdata.prepare.table.job import estimate_table

        return estimate_table(source, out, target=target, category=category, drop=drop, classes=classes, workers=workers)
    check_positive(limit=limit, workers=workers)
    chosen = ImageOptions(as_sizes(size), **options, mask=mask_options(masks, mask_suffix, mask_bits, palette))
    root, folder = resolve(source, out)
    found = list_sources(source, labels=labels, classes=classes)
    if masks is not None:
        found = with_masks(found, Path(masks), mask_suffix)
    plan = make_plan(found, chosen, limit)
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    count = len(plan.sources)
    probes = [plan.sources[k * count // min(PROBES, count)] for k in range(min(PROBES, count))]
    size_bytes, rejected, started = 0, Counter[str](), time.perf_counter()
    for probe in probes:
        if probe.problem:
            rejected[probe.problem] += 1
            continue
        try:
            mask = (Path(masks) / probe.mask).read_bytes() if masks is not None and probe.mask else None
            records = prepare_image((root / probe.name).read_bytes(), chosen, mask=mask)
            size_bytes += sum(_stored(len(record.data)) for record in records)
        except Exception as error:  # noqa: BLE001  a reject, as in a run
            rejected[reject_of(error)[0]] += 1
    scale = count / len(probes)
    seconds = (time.perf_counter() - started) * scale / (workers or available_cores())
    cv2.setNumThreads(threads)
    fixed = SHARD_PAGES * PAGE * plan.num_shards * len(chosen.variants())
    disk = next(p for p in (folder, *folder.parents) if p.exists())
    return Estimate(count, int(size_bytes * scale) + fixed, seconds, shutil.disk_usage(disk).free, len(probes), dict(rejected))


def _stored(size: int) -> int:
    """Bytes that LMDB needs for a record: whole pages, and an entry that points there; or, of small ones, several in a page."""
    if size + 16 > PAGE // 2 - 24:
        return -(-(size + 16) // PAGE) * PAGE + 26
    return PAGE // ((PAGE - 16) // (size + 18))
