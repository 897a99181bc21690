"""prep: make a plan, run the shards that are not finished yet, and turn them into a store."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import StoreError
from fastdata.machine import available_cores
from fastdata.prepare.build_plan import Work, as_path, build_plan, check_positive
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.folder import PLAN, claimed, clear, is_finished
from fastdata.prepare.progress import MODES, Progress
from fastdata.prepare.run import run_shards
from fastdata.prepare.worker import shard_columns, shard_table
from fastdata.sources.reasons import tried_path
from fastdata.store.files import WORK, shard_file, write_atomic
from fastdata.store.store import Store

__all__ = ["Summary", "prep"]


@dataclass(frozen=True)
class Summary:
    """What a run made. `inputs_per_s` and `seconds` are of this run, the other figures of the whole store.

    Attributes:
        out: the store.
        inputs: number of images, documents or rows found.
        kept: number of inputs in the store.
        rejected: count of rejected inputs by reason; rejects.jsonl lists each.
        resumed: number of inputs that an earlier run had finished.
        bytes_before: size of the kept images, of the text files, or of the table.
        bytes_after: size of all records of all sizes.
        seconds: duration of this run.
        skipped: count of files of other types, by extension.
        notes: what the labels are, where they come from, and what is not stored or differs from the request.
        first_reject: the first rejected input and its reason, or "".
        tokens: number of tokens in a store of tokens.
        originals: for codec "original", how many images of each size kept their bytes; the others were encoded.
        kind: the kind of data: "images", "tokens", "arrays" or "table".
    """

    out: Path
    inputs: int
    kept: int
    rejected: dict[str, int]
    resumed: int
    bytes_before: int
    bytes_after: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    kind: str = "images"
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_reject: str = ""

    @property
    def inputs_per_s(self) -> float:
        return (self.inputs - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def reject_rate(self) -> float:
        return sum(self.rejected.values()) / self.inputs if self.inputs else 0.0


def prep(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: str = "off",
    **options: Any,
) -> Summary:
    r"""Make a store of images, arrays, text or a table. After an interruption, the same call continues the run.

    Args:
        source: the inputs.
            Images: a folder (one folder per class, or flat); a table of paths and labels; archives (WebDataset tars, Parquet,
            .arrow, idx, CIFAR's batches, HDF5 as "file.h5::dataset", LMDB), several as "shards-{000..099}.tar"; or a Python
            sequence of arrays (uint8 or uint16, [H, W] or [H, W, 3]), of Pillow images, or of (image, label) pairs, such as a
            torchvision dataset.
            Arrays: a folder, a table of paths, or one file: .npy, .npz, NIfTI, DICOM series.
            Text (with tokenizer or train_bpe): a folder or a file of .txt (one document each), .jsonl or .parquet; .txt and .jsonl
            also as .gz or .zst.
            Table (with target): a .parquet, .arrow, .csv or .tsv file; or a DataFrame (pandas, or any that exports an Arrow
            stream).
        out: the store to make; None: the source's name + ".fds", in the current folder.
        limit: prepare only this many images or arrays, evenly spaced; or the first documents; or the first rows of a table.
        workers: number of processes; None: one per core.
        overwrite: replace a store, or an unfinished one, that has other options or inputs.
        timeout: seconds after which an input is considered to hang its decoder.
        progress: "auto", "plain", "json" or "off".
        kind: "images", "arrays" (also for TIFF and PNG), "tokens" or "table"; None: follows from the options and files.
        options: the options of the kind, see below.

    Raises:
        PrepError: the run cannot start or continue. Finished shards are kept.
        StoreError: the store cannot be written, for example because the disk is full. Finished shards are kept.
        TypeError: there is no such option.
        ValueError: an argument is wrong.
    """
    check_positive(workers=workers, timeout=timeout)
    if progress not in MODES:
        raise ValueError(f"--progress is {progress}, but must be one of {', '.join(MODES)}")
    with as_path(source, out, options.pop("labels", None)) as (path, labels):
        work = build_plan(path, out, limit=limit, labels=labels, **options)
        started = time.monotonic()
        notes = work.notes
        try:
            with claimed(work.out):
                resumed: int | None = None  # all inputs
                if not is_finished(work.out, work.plan, overwrite):
                    resumed = _run(work, workers or available_cores(), timeout, progress)
                    notes += finish(work.plan, work.out)
        except OSError as error:
            raise StoreError(f"cannot write {work.out}: {error}\nWhat is finished is kept; run the same command again.") from error
    return _summary(work, resumed, time.monotonic() - started, notes)


def _run(work: Work, workers: int, timeout: float, progress: str) -> int:
    """Make the missing shards. Return the number of inputs that earlier runs had finished."""
    plan, out = work.plan, work.out
    names = [name for name, _, _ in plan.options.variants()]
    finished = finished_shards(plan, out, thorough=True)
    files = {out / shard_file(name, k) for name in names for k in finished}
    clear(out, files | {path(out, k) for path in (shard_table, shard_columns) for k in finished} | {out / WORK / PLAN})
    for folder in (WORK, *names):
        (out / folder).mkdir(exist_ok=True)
    for name, data in plan.files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, data)
    if not (out / WORK / PLAN).exists():
        write_atomic(out / WORK / PLAN, plan.to_json())
    total, before = (sum(plan.work(k) for k in shards) for shards in (range(plan.num_shards), finished))
    missing = [k for k in range(plan.num_shards) if k not in finished]
    try:
        with Progress(total, before, progress, plan.options.unit) as bar:
            run_shards(plan, work.roots, out, missing, workers=workers, timeout_s=timeout, report=bar.update)
    finally:
        for temporary in (out / WORK).glob("*.tmp"):
            temporary.unlink()
    return sum(len(table["rejects"]) + work.kind.kept(table) for table in finished.values())


def _first_reject(work: Work, rejected: list[dict[str, Any]]) -> str:
    if not rejected:
        return ""
    place, name, reason, detail = (rejected[0][key] for key in ("source", "name", "reason", "detail"))
    source = next(iter(work.plan.sources[place : place + 1]), None)  # for a table, the place is a row
    in_archive = bool(getattr(source, "place", ()))
    return f"{name}: {reason}: {detail}{'' if in_archive else tried_path(work.roots[0], reason, name)}"


def _summary(work: Work, resumed: int | None, seconds: float, notes: tuple[str, ...]) -> Summary:
    store = Store(work.out, kind=None)
    rejected = store.rejects()
    tokens = store.manifest.section("tokens")
    before, after = work.kind.sizes(store, work.plan.sources)
    return Summary(
        out=work.out,
        inputs=len(store) + len(rejected),
        kept=len(store),
        rejected=dict(Counter(r["reason"] for r in rejected)),
        resumed=len(store) + len(rejected) if resumed is None else resumed,
        bytes_before=before,
        bytes_after=after,
        seconds=seconds,
        skipped=work.skipped,
        notes=(*notes, *work.kind.notes(store)),
        first_reject=_first_reject(work, rejected),
        tokens=0 if tokens is None else sum(tokens.counts),
        kind=store.manifest.kind,
        originals={v.name: v.originals for v in store.manifest.variants if v.originals is not None},
    )
