"""Preparing: plan once, make the shards, finish once. `prep` does all of it; tasks do it anywhere and in any order.

Tasks need no coordination. A shard is a function of the plan, and is published whole, so it may be made twice, or by two tasks at
the same time. A task that comes too late finds a finished store, and has nothing to do.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError, StoreError
from fastdata.prepare.build_plan import build_plan, check_positive, on_disk, plan_stores
from fastdata.prepare.finish import PlanSummary, Summary, TaskSummary, finish, finished_shards, skipped_note, summarize
from fastdata.prepare.folder import claimed, settle
from fastdata.prepare.plan import PrepareRun, check_host, difference, load_plan, plan_path, read_plan, save_plan
from fastdata.prepare.ray_engine import run_on_ray
from fastdata.prepare.run import run_shards
from fastdata.prepare.worker import shard_path, shard_table
from fastdata.remote.bucket import Bucket, Storage
from fastdata.remote.publish import publish, published
from fastdata.sources.python import share
from fastdata.sources.urls import reading_urls
from fastdata.store.files import COLUMNS, MANIFEST, NEXT, REJECTS, WORK, clear, is_own
from fastdata.store.manifest import read_manifest
from fastdata.store.store import Store
from fastdata.types import StrPath

ENGINES = "local", "ray"
LINE_S = 5.0  # between lines of progress in a log


def prep(
    source: Any,
    out: StrPath | None = None,
    *,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: bool = False,
    engine: str = "local",
    storage: Storage | None = None,
    **options: Any,
) -> Summary:
    """Make a store of images, arrays or text. After an interruption, the same call continues the run.

    A source with splits, such as a folder with train/ and val/ or a table with a column `split`, becomes a store per split, with
    the classes of train: photos-train.fds and photos-val.fds. The summary is that of train; its `splits` has that of each split.

    Args:
        source: the inputs.
            Images: a folder (one folder per class, or flat); a table of paths and labels; archives (WebDataset tars, Parquet,
            .arrow, MDS, LitData), several as "shards-{000..099}.tar"; or a Python sequence of arrays or
            tensors (uint8 or uint16, [H, W] or [H, W, 3]), Pillow images, bytes or paths of image files, or (image, label) pairs or
            dicts of these, such as a dataset of torchvision or of Hugging Face; a DataFrame of paths; "module:function", which
            returns one of these. Workers read the function's result, and what pickles to less than 64 MB; this process the rest.
            Arrays: a folder, a table of paths, or one file: .npy, .npz, NIfTI.
            Text (with tokenizer or train_bpe): a folder or a file: .parquet; .txt (one document each), .jsonl, also .gz or .zst.
        out: the store to make: a folder, or a URL of object storage, such as s3://bucket/photos.fds, to which it is copied from a
            temporary folder. Default: the source's name + ".fds", in the current folder.
        limit: prepare only this many images or arrays, evenly spaced; or the first documents.
        workers: number of processes. Default: one per core.
        overwrite: replace an unfinished store, or a finished one once the new one is whole. Not for a URL.
        timeout: seconds after which an input is considered to hang its decoder.
        engine: what runs the workers: "local", this machine, or "ray", the Ray cluster that RAY_ADDRESS names, else a new one on
            this machine; its nodes must share the disk of OUT.
        storage: options of the client of URLs: endpoint, region and others; what is missing comes from the environment.
        kind: "images", "arrays" or "tokens". Default: follows from the options and files.
        options: the options of the kind, see below.

    Raises:
        PrepError: the run cannot start or continue. Finished shards are kept.
        StoreError: the store cannot be written, for example because the disk is full. Finished shards are kept.
        TypeError: there is no such option.
        ValueError: an argument is wrong.
    """
    check_positive(workers=workers, timeout=timeout)
    if engine not in ENGINES:
        raise ValueError(f"--engine is {engine}, but must be one of {', '.join(ENGINES)}")
    if engine == "ray":
        if not isinstance(source, str | os.PathLike):
            kind = type(source).__name__
            raise ValueError(f"source is a {kind}, which the nodes of Ray cannot read: give it as 'module:function'")
        on_disk(out, "nodes of Ray make a store")
    run = partial(run_on_ray, prep_run=prep_run) if engine == "ray" else run_shards

    def make(work: PrepareRun) -> Summary:
        started = time.monotonic()
        if work.url and overwrite:
            raise ValueError(f"--overwrite replaces stores on disk, but OUT is {work.url}: give a folder, or leave --overwrite out")
        if work.url and (found := _at_url(work)) is not None:
            return found
        with claimed(work.out):
            laid = _lay_plan(work, overwrite)
        with claimed(work.out, share=engine == "ray"):  # whose tasks are those of prep_run
            if laid is None:
                summary = _finish_store(work, None, started)
            else:
                before = _make_missing(laid, range(laid.plan.num_shards), partial(run, workers=workers), timeout, progress)
                summary = _finish_store(laid, sum(map(sum, before.values())), started)
            if work.url:
                publish(work.out, work.url, storage=work.storage)
                shutil.rmtree(work.out)
                return replace(summary, out=work.url)
            return summary

    with share(source, out, options.pop("labels", None)) as (path, labels), reading_urls(storage):
        plan = partial(build_plan, storage=storage, limit=limit)
        made = {name: make(work) for name, work in plan_stores(plan, path, out, {**options, "labels": labels}).items()}
        first = next(iter(made.values()))
        return first if "" in made else replace(first, splits=made)


def prep_plan(
    source: StrPath,
    out: StrPath | None = None,
    *,
    limit: int | None = None,
    overwrite: bool = False,
    storage: Storage | None = None,
    **options: Any,
) -> PlanSummary:
    """Plan how to prepare a source, and write the plan into OUT for tasks on any machines: `prep_run`, then `prep_finish`.

    Planning again with the same arguments keeps finished shards. Arguments and errors are those of `prep`. All machines must see
    the source and OUT at the same paths.
    """
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise TypeError(f"source is a {kind}, which other machines cannot read: give a path, or 'module:function'")
    with reading_urls(storage):
        work = build_plan(source, on_disk(out, "tasks make a store"), storage, limit=limit, **options)
        with claimed(work.out):
            finished = _lay_plan(work, overwrite) is None
    plan = work.plan
    notes = (*skipped_note(plan.skipped, work.kind.name), *plan.notes)
    return PlanSummary(work.out, len(plan.sources), plan.num_shards, finished, notes)


def _lay_plan(work: PrepareRun, overwrite: bool) -> PrepareRun | None:
    """Write a plan into OUT, remove leftovers of killed runs, and return the plan, or None if its store is finished."""
    settle(work.out)
    if (work.out / MANIFEST).exists():
        if not overwrite:
            _check_same(work, difference(read_manifest(work.out), work.plan))
            return None
        work = replace(work, out=work.out / WORK / NEXT, replaces=work.out)
        work.out.mkdir(exist_ok=True)
    out, names = work.out, [name for name, _, _ in work.plan.options.variants()]
    try:
        changed = difference(read_plan(out)[0], work.plan) if plan_path(out).exists() else ""
    except PrepError:  # it is damaged
        if not overwrite:
            raise
        changed = "damaged"
    if not overwrite:
        _check_same(work, changed)
    kept = [] if changed else finished_shards(work, range(work.plan.num_shards))
    clear(out, {shard_table(out, k) for k in kept} | {shard_path(out, name, k) for k in kept for name in (COLUMNS, *names)})
    for folder in ("", WORK, *names):
        (out / folder).mkdir(exist_ok=True)
    save_plan(work.plan, out)
    return load_plan(work.store, work.storage)


def _check_same(work: PrepareRun, changed: str) -> None:
    """Raise a PrepError if the plan differs from the plan or store in OUT."""
    if changed:
        raise PrepError(
            f"{work.url or work.store} was made, or begun, with other options or inputs:\n{changed}\n"
            "Give the same options and inputs, another OUT, or, if OUT is a folder, --overwrite."
        )


def prep_run(
    out: StrPath,
    *,
    task: int | None = None,
    of: int | None = None,
    workers: int | None = None,
    timeout: float = 60.0,
    storage: Storage | None = None,
    progress: bool = True,
) -> TaskSummary:
    """Make the shards of one task of a plan that `prep_plan` has written, if they are not finished.

    Any number of tasks may run at a time, on any machines; a task may run twice, or be killed and run again.

    Args:
        out: the folder with the plan.
        task, of: make every `of`-th shard from number `task` on. Default: all shards.
        workers, timeout, storage, progress: as for `prep`.

    Raises:
        PrepError: there is no plan, its inputs are not there, or this machine would make other bytes than the others.
        StoreError: shards cannot be written. Finished ones are kept.
        ValueError: an argument is wrong.
    """
    check_positive(of=of, workers=workers, timeout=timeout)
    if (task is None) != (of is None):
        raise ValueError("give both --task and --of: the number of this task, from 0, and the number of tasks")
    number, count = task or 0, of or 1
    if not 0 <= number < count:
        raise ValueError(f"--task is {number} and --of is {count}, but tasks are numbered from 0 to {count - 1}")
    folder = Path(on_disk(out, "tasks make a store")).absolute()
    with reading_urls(storage):
        work = load_plan(folder, storage)
        if work is None:
            return TaskSummary()
        check_host(work)
        shards = range(number, work.plan.num_shards, count)
        with _unless_finished(work), claimed(folder, share=True):
            if not plan_path(work.out).exists():  # another process has just finished the store
                raise PrepError(f"the plan of {folder} has been removed; plan again")
            before = _make_missing(work, shards, partial(run_shards, workers=workers), timeout, progress)
            done = finished_shards(work, shards)
            inputs, rejected = sum(map(sum, done.values())), sum(bad for _, bad in done.values())
            return TaskSummary(len(shards), len(shards) - len(before), inputs, rejected)
        return TaskSummary(len(shards))


@contextmanager
def _unless_finished(work: PrepareRun) -> Iterator[None]:
    """Suppress errors that arise because another process has finished the store and removed the work folder."""
    try:
        yield
    except (OSError, PrepError, StoreError):
        if not work.is_stored():
            raise


def _make_missing(
    work: PrepareRun, shards: Sequence[int], engine: Callable[..., None], timeout_s: float, show: bool
) -> dict[int, tuple[int, int]]:
    """Make the unfinished shards among `shards`, by `run_shards` or another engine. Return the shards that were finished before.

    show: show the progress on stderr; in the log of a job, a line every few seconds.
    """
    before = finished_shards(work, shards)
    missing = [k for k in shards if k not in before]
    total, left = (sum(work.plan.amounts[k] for k in some) for some in (shards, missing))
    unit = work.plan.options.unit  # "img" or "B"
    look: dict[str, Any] = {"dynamic_ncols": True} if sys.stderr.isatty() else {"mininterval": LINE_S, "file": _Lines()}
    look |= {"total": total, "initial": total - left, "unit": unit, "unit_scale": unit == "B", "smoothing": 0.1}
    stack = ExitStack()

    @cache
    def bar() -> Any:
        from tqdm import tqdm  # which takes 30 ms, in which the workers are at work already

        return stack.enter_context(tqdm(**look))

    def report(finished: int, rejected: int) -> None:
        if show:
            bar().set_postfix(rejected=rejected, refresh=False)
            bar().update(total - left + finished - bar().n)

    with stack:
        if missing:
            engine(missing, report, work=work, timeout_s=timeout_s)
    return before


class _Lines(io.StringIO):
    """Writes each state of a progress bar as a line of its own."""

    def write(self, text: str) -> int:
        return sys.stderr.write(f"{text.strip()}\n") if text.strip() else 0


def prep_finish(out: StrPath) -> Summary:
    """Turn the shards that tasks have made in the folder `out` into a store. Finishing it twice, or in two processes, is harmless.

    Raise a PrepError if shards are missing, there is no plan, or no input was kept, and a StoreError if it cannot be written.
    """
    folder = Path(on_disk(out, "tasks make a store")).absolute()
    if (work := load_plan(folder)) is not None:
        check_host(work, inputs=False)
        with _unless_finished(work), claimed(folder, share=True):
            return _finish_store(work, None, time.monotonic())
    with suppress(PrepError), claimed(folder):  # or another process does it
        settle(folder)
    store = Store(folder, kind=None)
    return summarize(folder, store.manifest, store.rejects())


def _finish_store(work: PrepareRun, resumed: int | None, started: float) -> Summary:
    """Make the store of finished shards, and describe it. resumed: the number of inputs that earlier runs had finished."""
    notes = () if work.is_stored() else finish(work)
    store, seconds = Store(work.out, kind=None), time.monotonic() - started
    found = store.manifest, store.rejects(), work.plan
    summary = summarize(work.store, *found, resumed=resumed, seconds=seconds, notes=notes)
    if work.replaces is not None:
        with suppress(FileNotFoundError):  # another process has begun this
            work.out.rename(work.replaces / NEXT)
            settle(work.replaces)
    return summary


def _at_url(work: PrepareRun) -> Summary | None:
    """Return the summary if the run's store is at its URL already, None if the URL is free; else raise a PrepError."""
    bucket = Bucket(work.url, work.storage)
    if (manifest := published(bucket)) is None:
        if foreign := next((name for name, _ in bucket.list() if not is_own(name)), ""):
            raise PrepError(f"OUT {work.url} is not a store, but holds {foreign}; choose another URL, or delete what is there")
        return None
    if manifest.fingerprint != work.plan.fingerprint:
        raise PrepError(f"{work.url} was made with other options or inputs: give another URL, or delete what is there")
    rejects = [json.loads(line) for line in bucket.read(REJECTS, twice=True).splitlines()]
    return summarize(work.url, manifest, rejects, work.plan)
