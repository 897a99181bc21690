"""Preparing in tasks: plan once, run tasks anywhere and in any order, finish once.

Tasks need no coordination. A shard is a function of the plan, and is published whole, so it may be made twice, or by two tasks at
the same time. Whoever comes too late finds a finished store, and is done.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import PrepError, StoreError
from fastdata.machine import available_cores
from fastdata.prepare.build_plan import build_plan, check_positive
from fastdata.prepare.finish import finish, finished_shards
from fastdata.prepare.folder import Busy, claimed, clear, is_finished, is_stored, writing
from fastdata.prepare.host import check_host, check_libraries
from fastdata.prepare.launchers import find_task, local_tasks
from fastdata.prepare.plan import Plan, Work
from fastdata.prepare.plan_files import difference, load_plan, plan_path, save_plan
from fastdata.prepare.progress import Progress, check_mode
from fastdata.prepare.run import Engine, run_shards
from fastdata.prepare.summary import PlanSummary, Summary, TaskSummary, summarize
from fastdata.prepare.worker import shard_place, shard_table
from fastdata.remote.path import dropping_copies
from fastdata.sources.options import StrPath
from fastdata.store.files import COLUMNS, WORK
from fastdata.store.store import Store

__all__ = ["finish_store", "make_all", "plan_tasks", "prep_finish", "prep_plan", "prep_run"]


def prep_plan(
    source: StrPath, out: StrPath | None = None, *, limit: int | None = None, overwrite: bool = False, **options: Any
) -> PlanSummary:
    """Plan how to prepare a source, and write the plan into OUT for tasks on any machines: `prep_run`, then `prep_finish`.

    Planned again with the same arguments, finished shards are kept.

    Args:
        source, out, limit, overwrite, options: as for `prep`. The source is a path that every machine sees in the same place, and
            OUT is a folder that all of them share.

    Raises:
        PrepError: the plan cannot be made, or OUT holds another one.
        StoreError: the plan cannot be written.
        TypeError, ValueError: an argument is wrong.
    """
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise TypeError(f"source is a {kind}, which other machines cannot read: write it to files, and give their path")
    work = build_plan(source, out, limit=limit, **options)
    with writing(work.out), dropping_copies(work.roots):
        finished = plan_tasks(work, overwrite) is None
    plan = work.plan
    return PlanSummary(
        work.out, len(plan.sources), plan.num_shards, plan.fingerprint, finished, work.kind.name, work.skipped, work.notes
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
        return load_plan(work.out)


def lay_plan(work: Work, overwrite: bool) -> Work | None:
    """Write a plan into OUT, and remove what killed runs have left there. The folder is claimed.

    Returns:
        The plan, whose sources are in files; None: its store is finished.

    Raises:
        PrepError: OUT belongs to another plan, and `overwrite` is not set.
    """
    plan, out = work.plan, work.out
    if is_finished(work, overwrite):
        return None
    finished = finished_shards(work, range(plan.num_shards))
    clear(out, _kept(plan, out, finished))
    for folder in (WORK, *(name for name, _, _ in plan.options.variants())):
        (out / folder).mkdir(exist_ok=True)
    save_plan(work)
    return load_plan(out)


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
    scratch: StrPath | None = None,
    progress: str = "auto",
) -> TaskSummary:
    """Make the shards of one task of a plan that `prep_plan` has written, if they are not finished.

    Any number of tasks may run at a time, on any machines; a task may run twice, or be killed and run again.

    Args:
        out: the folder with the plan.
        task, of: make every `of`-th shard from number `task` on. None: as the launcher says (torchrun, Open MPI, Slurm and others,
            see `fastdata.prepare.launchers`); without a launcher, all shards.
        workers: number of processes; None: one for each core, divided among the tasks that a launcher started on this machine.
        timeout: seconds after which an input is considered to hang its decoder.
        scratch: a folder on a disk of this machine, to write shards there first; None: in OUT.
        progress: "auto", "plain", "json" or "off".

    Raises:
        PrepError: there is no plan, its inputs are not there, or this machine would make other bytes than the others.
        StoreError: shards cannot be written. Finished ones are kept.
        ValueError: an argument is wrong.
    """
    check_positive(workers=workers, timeout=timeout)
    check_mode(progress)
    place = Path(out).absolute()
    number, count = find_task(task, of)
    started = time.monotonic()
    if _is_finished_store(place):
        return TaskSummary(place, number, count, 0, 0, 0, 0, time.monotonic() - started)
    work = load_plan(place)
    check_host(work)
    shards = range(number, work.plan.num_shards, count)
    how: dict[str, Any] = {"workers": workers or max(1, available_cores() // local_tasks()), "timeout_s": timeout}
    if scratch is not None:
        how["scratch"] = Path(scratch).absolute()
    with writing(place), _unless_finished(work), dropping_copies(work.roots):
        with claimed(place, share=True):
            if not plan_path(place).exists():  # another process has just finished the store
                raise PrepError(f"the plan of {place} has been removed; plan again")
            before = finished_shards(work, shards)
            make_shards(work, shards, before, partial(run_shards, work=work, **how), progress)
            done = finished_shards(work, shards)
        rejected = sum(shard.rejected for shard in done.values())
        inputs = sum(map(sum, done.values()))
        made = len(shards) - len(before)
        return TaskSummary(place, number, count, len(shards), made, inputs, rejected, time.monotonic() - started)
    return TaskSummary(place, number, count, len(shards), 0, 0, 0, time.monotonic() - started)


def _is_finished_store(out: Path) -> bool:
    return not plan_path(out).exists() and (out / "manifest.json").exists()


@contextmanager
def _unless_finished(work: Work) -> Iterator[None]:
    """Suppress errors that come from another process having finished the store, and removed the work folder."""
    try:
        yield
    except (OSError, PrepError, StoreError):
        if not is_stored(work.out, work.plan):
            raise
        shutil.rmtree(work.out / WORK, ignore_errors=True)


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


def prep_finish(out: StrPath) -> Summary:
    """Turn the shards that tasks have made into a store. Finished twice, or by two processes, it is the same store.

    Raises:
        PrepError: shards are missing; there is no plan; or no input was kept.
        StoreError: the store cannot be written.
    """
    place, started = Path(out).absolute(), time.monotonic()
    if _is_finished_store(place):
        return summarize(Store(place, kind=None), None, None, 0.0, ())
    work = load_plan(place)
    check_libraries(work)
    with writing(place), _unless_finished(work), claimed(place, share=True):
        return finish_store(work, None, started)
    return summarize(Store(place, kind=None), None, None, 0.0, ())


def finish_store(work: Work, resumed: int | None, started: float) -> Summary:
    """Make the store of finished shards, and describe it. The arguments are those of `summarize`."""
    notes = () if is_stored(work.out, work.plan) else finish(work)
    summary = summarize(
        Store(work.out, kind=None, fingerprint=work.plan.fingerprint), work, resumed, time.monotonic() - started, notes
    )
    with suppress(OSError):
        shutil.rmtree(work.out / WORK)
    return summary
