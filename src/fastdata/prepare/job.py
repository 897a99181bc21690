"""prep: images, arrays or text become a store. Plan, run the shards that are not there yet, finish."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import StoreError
from fastdata.machine import available_cores
from fastdata.prepare.build_plan import Work, build_plan, check_positive
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.folder import PLAN, claimed, clear, is_finished
from fastdata.prepare.in_python import as_path
from fastdata.prepare.progress import MODES, Progress
from fastdata.prepare.run import run_shards
from fastdata.prepare.worker import shard_table
from fastdata.sources.reasons import tried_path
from fastdata.store.files import WORK, shard_file, write_atomic
from fastdata.store.store import Store

__all__ = ["Summary", "prep"]


@dataclass(frozen=True)
class Summary:
    """What a run made. inputs_per_s and seconds are of this run; the other figures of the whole store.

    Attributes:
        out: the store.
        inputs: images, documents or rows that were found.
        kept: of these, in the store.
        rejected: count by reason; each input stands in rejects.jsonl.
        resumed: inputs that an earlier run had done.
        bytes_before: of the kept images, or of the files of text, or of the table.
        bytes_after: of all records of all sizes.
        skipped: files that by their ending are none of these, by ending.
        notes: what the labels are and where they come from, and what of the source is not stored, or otherwise than asked.
        first_reject: the first of the rejects and its reason; empty, if there is none.
        tokens: in a store of tokens.
        originals: with codec "original", how many images of each size kept their bytes; the others were encoded.
        kind: of data: "images", "tokens", "arrays" or "table".
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
    r"""Make a store of images, of arrays, of text, or of a table. Run again after an interruption, it goes on.

    Args:
        source: of images, a folder (one folder per class, or flat), a CSV/TSV file of `path,label`, or archives: WebDataset tars,
            Parquet, .arrow, idx, CIFAR's batches, HDF5 ("file.h5::dataset"), LMDB; several as "shards-{000..099}.tar"; or a
            sequence in Python: of arrays (uint8 or uint16, [H, W] or [H, W, 3]), of images of Pillow's, or of pairs of one and its
            label, such as a dataset of torchvision's. Of arrays, a folder, a table or one file: .npy, .npz, NIfTI, DICOM series. Of
            text (with tokenizer or train_bpe), a folder or a file: .txt, one document each, or .jsonl or .parquet; all but the last
            also as .gz or .zst. Of a table (with target), a .parquet, .arrow, .csv or .tsv file; or a DataFrame (pandas, or
            whatever exports Arrow's stream).
        out: the store to make; None: the source's name + ".fds", in the current folder.
        limit: prepare that many images or arrays only, evenly spaced; of text, the first documents, and of a table, the first rows.
        workers: processes; None: one a core.
        overwrite: replace a store, or a begun one, of other options.
        timeout: seconds after which an input counts as one that hangs its decoder.
        progress: "auto", "plain", "json" or "off".
        kind: "images", "arrays" (then TIFF and PNG too), "tokens" or "table"; None: what the options and the files' endings say.
        options: what becomes of the inputs, as below.

    Raises:
        PrepError: it cannot start or go on. What is finished is kept.
        StoreError: the store cannot be written, because of a full disk or missing rights, say. What is finished is kept.
        TypeError: there is no such option.
        ValueError: a wrong argument.
    """
    check_positive(workers=workers, timeout=timeout)
    if progress not in MODES:
        raise ValueError(f"--progress is {progress}, but must be one of {', '.join(MODES)}")
    with as_path(source, out, options.pop("labels", None)) as (path, labels):
        work = build_plan(path, out, limit=limit, labels=labels, **options)
        started, notes = time.monotonic(), work.notes
        try:
            with claimed(work.out):
                resumed: int | None = None  # all of it
                if not is_finished(work.out, work.plan, overwrite):
                    resumed = _run(work, workers or available_cores(), timeout, progress)
                    notes += finish(work.plan, work.out)
        except OSError as error:
            raise StoreError(f"cannot write {work.out}: {error}\nWhat is finished is kept; run the same command again.") from error
    return _summary(work, resumed, time.monotonic() - started, notes)


def _run(work: Work, workers: int, timeout: float, progress: str) -> int:
    """Make what is missing. Returns the number of inputs that were done before."""
    plan, out = work.plan, work.out
    names = [name for name, _, _ in plan.options.variants()]
    have = finished_shards(plan, out, thorough=True)
    files = {out / shard_file(name, k) for name in names for k in have}
    clear(out, files | {shard_table(out, k) for k in have} | {out / WORK / PLAN})
    for folder in (WORK, *names):
        (out / folder).mkdir(exist_ok=True)
    for name, data in plan.files.items():
        write_atomic(out / name, data)
    if not (out / WORK / PLAN).exists():
        write_atomic(out / WORK / PLAN, plan.to_json())
    total, before = (sum(plan.work(k) for k in shards) for shards in (range(plan.num_shards), have))
    missing = [k for k in range(plan.num_shards) if k not in have]
    try:
        with Progress(total, before, progress, plan.options.unit) as bar:
            run_shards(plan, work.roots, out, missing, workers=workers, timeout_s=timeout, report=bar.update)
    finally:
        for left in (out / WORK).glob("*.tmp"):
            left.unlink()
    return sum(len(table["rejects"]) + work.kind.kept(table) for table in have.values())


def _first_reject(work: Work, rejected: list[dict[str, Any]]) -> str:
    if not rejected:
        return ""
    place, name, reason, detail = (rejected[0][key] for key in ("source", "name", "reason", "detail"))
    source = next(iter(work.plan.sources[place : place + 1]), None)  # of a table, the place is a row
    in_archive = bool(getattr(source, "place", ()))
    return f"{name}: {reason}: {detail}{'' if in_archive else tried_path(work.roots[0], reason, name)}"


def _summary(work: Work, resumed: int | None, seconds: float, notes: tuple[str, ...]) -> Summary:
    store = Store(work.out, kind=None)
    rejected, tokens, variants = store.rejects(), store.manifest.section("tokens"), store.manifest.variants
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
        originals={v.name: v.originals for v in variants if v.originals is not None},
    )
