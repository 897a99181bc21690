"""Preparing on Ray. Its tasks get the place of the plan and numbers of shards, and publish these themselves: no objects of Ray."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import FastDataError, MissingExtraError, PrepError, RemoteError, StoreError, needs
from fastdata.prepare.finish import finished_shards
from fastdata.prepare.host import check_host
from fastdata.prepare.plan import Work
from fastdata.prepare.plan_files import load_plan, plan_folder, plan_path
from fastdata.prepare.remote_out import opened
from fastdata.prepare.run import Pool, Report
from fastdata.remote.session import looking_anew
from fastdata.sources.options import StrPath
from fastdata.store.files import unique

__all__ = ["run_on_ray"]

RETRIES = 10  # of a task whose node or process was lost
PER_CPU = 16  # tasks for each CPU of the cluster, so that all are busy to the end
MOST = 8  # shards of a task: a worker makes the next shard while the last one is flushed
PATIENCE_S = 10  # NFS may show a new file late
ANSWER_S = 30  # a node that has just died may still be listed

_pools: dict[str, tuple[Work, Pool, ExitStack]] = {}  # by the token of the run: a process of Ray keeps its worker for the next task


class _Run(NamedTuple):
    """What all tasks of a run know: the store, a file in its work folder, options of its client, where to write shards first."""

    out: str
    token: str
    storage: dict[str, Any]
    scratch: str | None


def run_on_ray(
    shards: Sequence[int],
    report: Report,
    *,
    work: Work,
    workers: int | None,
    timeout_s: float,
    address: str | None,
    scratch: StrPath | None = None,
) -> None:
    """Make some shards of a plan on a Ray cluster. Tasks of lost nodes are run again.

    Args:
        report: called with the sums of this run: work done, inputs rejected, bytes read.
        work: the plan.
        workers: the most CPUs to use at a time; None: all.
        timeout_s: seconds after which an input is considered to hang its decoder.
        address: of the cluster; None: as RAY_ADDRESS says, or a new one on this machine. A process that is connected stays so.
        scratch: a folder on a disk of each node, as for `prep`.

    Raises:
        MissingExtraError: Ray is not installed.
        PrepError: a node does not see OUT or the inputs, or would make other bytes.
        StoreError: a node cannot write, or too many are lost.
    """
    with needs("ray[client]" if (address or "").startswith("ray://") else "ray"):
        import ray
    token = plan_path(work.out).with_name(f"{plan_path(work.out).name}.{unique()}.tmp")
    token.touch()
    try:
        with _connected(ray, address), _our_errors(ray):
            run = _Run(str(work.place), token.name, dict(work.storage), None if scratch is None else str(Path(scratch).absolute()))
            _check_nodes(ray, run)
            cpus = int(ray.cluster_resources().get("CPU", 1))
            size = max(1, min(MOST, len(shards) // (cpus * PER_CPU)))
            groups = [shards[k : k + size] for k in range(0, len(shards), size)]
            make = ray.remote(max_retries=RETRIES, num_cpus=1)(_make)
            _collect(ray, lambda group: make.remote(run, group, timeout_s), groups, workers, report)
    finally:
        token.unlink(missing_ok=True)


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to the cluster, and bring this package along; the nodes need its dependencies only."""
    if ray.is_initialized():
        yield
        return
    _check_address(address)
    package = str(Path(__file__).parents[1])
    try:
        ray.init(address=address, runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PrepError(f"--address {address}: cannot connect to Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise PrepError if nothing answers there; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), ANSWER_S).close()
        except OSError as error:
            raise PrepError(f"--address {address}: cannot connect to Ray: {error}") from None


@contextmanager
def _our_errors(ray: Any) -> Iterator[None]:
    """Raise what a task raised, without Ray's wrapper."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FastDataError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise StoreError(f"Ray could not go on: {error}\nWhat is finished is kept; run the same command again.") from error


def _check_nodes(ray: Any, run: _Run) -> None:
    """Raise PrepError if a node does not see OUT, or would make other bytes. Nodes that do not answer are looked at by `_make`."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_look)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    looks = [look.options(scheduling_strategy=strategy).remote(run) for strategy in strategies]
    problems = set()
    for answered in ray.wait(looks, num_returns=len(looks), timeout=ANSWER_S)[0] if looks else ():
        with suppress(ray.exceptions.RaySystemError, ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
            problems.add(ray.get(answered))
    if found := sorted(problems - {""}):
        raise PrepError("\n".join(found))


def _collect(
    ray: Any, submit: Callable[[Sequence[int]], Any], groups: list[Sequence[int]], workers: int | None, report: Report
) -> None:
    """Run tasks, `workers` at a time, and report the sums of what they return."""
    left = groups[::-1]
    running, sums = list[Any](), (0, 0, 0)
    while left or running:
        while left and (workers is None or len(running) < workers):
            running.append(submit(left.pop()))
        done, running = ray.wait(running, num_returns=1, timeout=1.0)
        for made in ray.get(done):
            sums = sums[0] + made[0], sums[1] + made[1], sums[2] + made[2]
        report(*sums)


def _look(run: _Run) -> str:
    """Return why this node cannot make shards; "" if it can."""
    try:
        with _plan_here(run):
            pass
    except (PrepError, RemoteError, MissingExtraError) as error:
        return str(error)
    return ""


@contextmanager
def _plan_here(run: _Run) -> Iterator[Work]:
    """Read the plan on a node. If OUT is a folder, look for a file that the driver has just written."""
    with opened(run.out, run.storage, run.scratch) as remote, looking_anew(run.storage):
        if remote is None:
            _find_token(Path(run.out), run.token)
        work = load_plan(Path(run.out) if remote is None else remote.folder, remote, run.storage)
        check_host(work)
        yield work


def _find_token(out: Path, token: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not plan_path(plan_folder(out)).with_name(token).exists():
        if time.monotonic() > end:
            raise PrepError(
                f"OUT {out} is not visible from node {socket.gethostname()}: give a folder that all nodes share, "
                "or a URL of object storage"
            )
        time.sleep(0.2)


def _make(run: _Run, shards: Sequence[int], timeout_s: float) -> tuple[int, int, int]:
    """Make some shards on a node, but those that a lost try of this task has finished.

    Returns:
        The work done, the number of rejected inputs, and the bytes read.
    """
    if run.token not in _pools:
        with ExitStack() as stack:
            work = stack.enter_context(_plan_here(run))
            scratch = None if run.scratch is None or work.remote is not None else Path(run.scratch)
            pool = stack.enter_context(Pool(work, workers=1, timeout_s=timeout_s, scratch=scratch))
            _pools[run.token] = work, pool, stack.pop_all()
    work, pool, stack = _pools[run.token]
    finished = finished_shards(work, shards)
    before = [pool.total(name) for name in ("done", "rejected", "bytes")]
    try:
        pool.run([k for k in shards if k not in finished])
    except BaseException:
        del _pools[run.token]
        stack.close()
        raise
    done, rejected, size = (pool.total(name) - was for name, was in zip(("done", "rejected", "bytes"), before, strict=True))
    done += sum(work.plan.amounts[k] for k in finished)
    rejected += sum(shard.rejected for shard in finished.values())
    return done, rejected, size
