"""Preparing in tasks: plan once, run tasks anywhere and in any order, finish once.

Tasks need no coordination. A shard is a function of the plan, and is published whole, so it may be made twice, or by two tasks at
the same time. Whoever comes too late finds a finished store, and is done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError, StoreError
from fastdata.machine import available_cores
from fastdata.prepare.build_plan import build_plan, check_positive
from fastdata.prepare.finish import finish, finished_shards, unsent_shards
from fastdata.prepare.folder import Busy, claimed, clear_work, is_finished, is_stored, writing
from fastdata.prepare.host import check_host, check_libraries
from fastdata.prepare.plan import Plan, Work
from fastdata.prepare.plan_files import difference, load_plan, next_folder, plan_folder, plan_path, save_plan
from fastdata.prepare.progress import Progress, check_mode
from fastdata.prepare.replacing import is_settled, replace_store, settle
from fastdata.prepare.run import Engine, run_shards
from fastdata.prepare.summary import PlanSummary, Summary, TaskSummary, summarize
from fastdata.prepare.upload import Upload, check_storage, opened, place_of, refuse_overwrite
from fastdata.prepare.worker import shard_place, shard_table
from fastdata.remote.url import Storage
from fastdata.sources.options import StrPath
from fastdata.sources.urls import reading_urls
from fastdata.store.files import COLUMNS, MANIFEST, WORK, clear
from fastdata.store.store import Store

__all__ = ["describe", "finish_store", "make_all", "plan_tasks", "prep_finish", "prep_plan", "prep_run"]


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

    Planned again with the same arguments, finished shards are kept.

    Args:
        source, out, limit, overwrite, storage, options: as for `prep`. The source is a path that every machine sees in the
            same place; OUT is a folder that all of them share, or a URL of object storage.

    Raises:
        PrepError: the plan cannot be made, or OUT holds another one.
        StoreError: the plan cannot be written.
        TypeError, ValueError: an argument is wrong.
    """
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise TypeError(f"source is a {kind}, which other machines cannot read: give a path, or 'module:function'")
    check_storage(storage, source, out)
    refuse_overwrite(out, overwrite)
    with opened(place_of(out), storage) as remote, reading_urls(storage):
        work = build_plan(source, out, remote, storage, limit=limit, **options)
        with writing(work.place):
            finished = plan_tasks(work, overwrite) is None
        plan, kind = work.plan, work.kind.name
        return PlanSummary(
            work.place, len(plan.sources), plan.num_shards, plan.fingerprint, finished, kind, work.skipped, work.notes
        )


def plan_tasks(work: Work, overwrite: bool) -> Work | None:
    """Write a plan into OUT, as `lay_plan` does. Tasks may run meanwhile if the plan is theirs."""
    try:
        with claimed(work.out):
            return lay_plan(work, overwrite)
    except Busy:
        if overwrite or not plan_path(work.out).exists() or difference(work):
            raise
        save_plan(work)  # mends it, and removes nothing
        return load_plan(work.out, work.remote, work.storage)


def lay_plan(work: Work, overwrite: bool) -> Work | None:
    """Write a plan into OUT, and remove what killed runs have left there. The folder is claimed.

    A plan that is to replace a finished store lies in a folder of its own, inside of that one.

    Returns:
        The plan, whose sources are in files; None: its store is finished.

    Raises:
        PrepError: OUT belongs to another plan, and `overwrite` is not set.
    """
    if work.remote is None:
        settled = settle(work.out)
        if overwrite and (work.out / MANIFEST).exists():
            if settled and is_stored(work):
                return None
            work = replace(work, out=next_folder(work.out), replaces=work.out)
            work.out.mkdir(exist_ok=True)
    plan, out = work.plan, work.out
    if is_finished(work, overwrite):
        return None
    begun = plan_path(out).exists()
    finished = finished_shards(work, range(plan.num_shards)) if begun or work.remote is None else ()
    if work.remote is None or not begun:
        clear(out, _kept(plan, out, finished))
    out.mkdir(exist_ok=True)
    for folder in (WORK, *(name for name, _, _ in plan.options.variants())):
        (out / folder).mkdir(exist_ok=True)
    save_plan(work)
    if work.remote is not None:
        work.remote.send_plan(plan.files, plan.fingerprint)
    return load_plan(work.store, work.remote, work.storage)


def _kept(plan: Plan, out: Path, finished: Iterable[int]) -> set[Path]:
    """Return the files that a run goes on from."""
    names = [COLUMNS, *(name for name, _, _ in plan.options.variants())]
    files = {shard_place(out, name, k) for name in names for k in finished} | {shard_table(out, k) for k in finished}
    strikes = {*(out / WORK).glob("strikes-*.json")} if plan_path(out).exists() else set()
    return files | strikes | {plan_path(out)}


def prep_run(
    out: StrPath,
    *,
    task: int | None = None,
    of: int | None = None,
    workers: int | None = None,
    timeout: float = 60.0,
    storage: Storage | None = None,
    progress: str = "auto",
) -> TaskSummary:
    """Make the shards of one task of a plan that `prep_plan` has written, if they are not finished.

    Any number of tasks may run at a time, on any machines; a task may run twice, or be killed and run again.

    Args:
        out: the folder with the plan, or the URL.
        task, of: make every `of`-th shard from number `task` on; None: all shards.
        workers: number of processes; None: one for each core.
        timeout: seconds after which an input is considered to hang its decoder.
        storage: for a URL, options of the client, as for `prep`.
        progress: "auto", "plain", "json" or "off".

    Raises:
        PrepError: there is no plan, its inputs are not there, or this machine would make other bytes than the others.
        StoreError: shards cannot be written. Finished ones are kept.
        ValueError: an argument is wrong.
    """
    check_positive(workers=workers, timeout=timeout)
    check_mode(progress)
    number, count = _checked_task(task, of)
    started = time.monotonic()
    with _begun(out, storage) as (folder, remote, work):
        place = folder if remote is None else remote.url
        if work is None:
            return TaskSummary(place, number, count, 0, 0, 0, 0, time.monotonic() - started)
        check_host(work)
        shards = range(number, work.plan.num_shards, count)
        how: dict[str, Any] = {"workers": workers or available_cores(), "timeout_s": timeout}
        with writing(place), _unless_finished(work):
            with claimed(folder, share=True):
                if not plan_path(work.out).exists():  # another process has just finished the store
                    raise PrepError(f"the plan of {place} has been removed; plan again")
                before = finished_shards(work, shards)
                make_shards(work, shards, before, partial(run_shards, work=work, **how), progress)
                done = finished_shards(work, shards)
            rejected = sum(shard.rejected for shard in done.values())
            inputs = sum(map(sum, done.values()))
            made = len(shards) - len(before)
            if remote is not None and is_stored(work):
                clear_work(work)  # another process has finished the store, and did not know of the last shards
            return TaskSummary(place, number, count, len(shards), made, inputs, rejected, time.monotonic() - started)
        return TaskSummary(place, number, count, len(shards), 0, 0, 0, time.monotonic() - started)


def _checked_task(task: int | None, of: int | None) -> tuple[int, int]:
    """Return the number of a task, from 0, and the number of tasks; without them, one task."""
    if task is None and of is None:
        return 0, 1
    if of is None:
        raise ValueError(f"--task is {task}, but nothing says how many tasks there are: give --of")
    if task is None:
        raise ValueError(f"--of is {of}, but nothing says which of these tasks this is: give --task, a number from 0 to {of - 1}")
    if not 0 <= task < of:
        raise ValueError(f"--task is {task} of {of} tasks, but tasks count from 0 to {of - 1}")
    return task, of


@contextmanager
def _begun(out: StrPath, storage: Storage | None) -> Iterator[tuple[Path, Upload | None, Work | None]]:
    """Yield the folder of OUT, what it is in object storage, and its plan; None: the store is finished, and the plan is gone."""
    given = place_of(out)
    with opened(given, storage) as remote, reading_urls(storage):
        folder = Path(given).absolute() if remote is None else remote.folder
        if not plan_path(plan_folder(folder)).exists() and ((folder / MANIFEST).exists() or not is_settled(folder)):
            yield folder, remote, None
            return
        work = load_plan(folder, remote, storage)
        check_storage(storage, given, *work.roots)
        yield folder, remote, work


@contextmanager
def _unless_finished(work: Work) -> Iterator[None]:
    """Suppress errors that come from another process having finished the store, and removed the work folder."""
    try:
        yield
    except (OSError, PrepError, StoreError):
        if not is_stored(work):
            raise
        if work.replaces is None:  # else the process that puts the store in its place removes the folder
            clear_work(work)


def make_shards(
    work: Work,
    shards: Sequence[int],
    before: Container[int],
    engine: Engine,
    progress: str,
) -> None:
    """Make those of some shards that are not finished.

    Args:
        before: those that are.
        engine: makes shards, and reports to a function as `run_shards` does.
        progress: how to show it.
    """
    amounts = work.plan.amounts
    missing = [k for k in shards if k not in before]
    if work.remote is not None:
        unsent = unsent_shards(work, missing)  # of a run that was killed
        for k in unsent:
            work.remote.upload(k)
        missing = [k for k in missing if k not in unsent]
    total, left = (sum(amounts[k] for k in some) for some in (shards, missing))
    with Progress(total, total - left, progress, work.plan.options.unit) as bar:
        if missing:
            engine(missing, bar.update)


def make_all(work: Work, engine: Engine, progress: str, started: float) -> Summary:
    """Make all shards of a plan that are not finished, then the store."""
    shards = range(work.plan.num_shards)
    before = finished_shards(work, shards)
    resumed = sum(map(sum, before.values()))
    make_shards(work, shards, before, engine, progress)
    return finish_store(work, resumed, started)


def prep_finish(out: StrPath, *, storage: Storage | None = None) -> Summary:
    """Turn the shards that tasks have made into a store. Finished twice, or by two processes, it is the same store.

    Args:
        out: the folder with the plan, or the URL.
        storage: for a URL, options of the client, as for `prep`.

    Raises:
        PrepError: shards are missing; there is no plan; or no input was kept.
        StoreError: the store cannot be written.
    """
    started = time.monotonic()
    with _begun(out, storage) as (folder, remote, work):
        if work is not None:
            check_libraries(work)
            with writing(work.place), _unless_finished(work), claimed(folder, share=True):
                return finish_store(work, None, started)
        if remote is None:
            with writing(folder), suppress(Busy), claimed(folder):
                settle(folder)
        return describe(folder, remote, None, None, 0.0, ())


def finish_store(work: Work, resumed: int | None, started: float) -> Summary:
    """Make the store of finished shards, and describe it. The arguments are those of `summarize`."""
    notes = () if is_stored(work) else finish(work)
    summary = describe(work.out, work.remote, work, resumed, time.monotonic() - started, notes)
    if work.replaces is not None:
        replace_store(work)
        summary = replace(summary, out=work.store)
    try:
        clear_work(work)
    except StoreError as error:  # the store is finished all the same
        return replace(summary, notes=(*summary.notes, f"{work.place}/{WORK} is not needed any more, but stays: {error}"))
    return summary


def describe(
    folder: Path, remote: Upload | None, work: Work | None, resumed: int | None, seconds: float, notes: tuple[str, ...]
) -> Summary:
    """Describe a finished store.

    Args:
        folder: where it is; if it is in object storage, the folder of `remote`.
        work, resumed, seconds, notes: as for `summarize`.
    """
    if remote is not None:
        return replace(summarize(remote.store(), work, resumed, seconds, notes), out=remote.url)
    store = Store(folder, kind=None)
    return summarize(store, work, resumed, seconds, notes)
