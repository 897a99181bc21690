"""Preparing on Ray. Its tasks get the place of the plan and numbers of shards, and publish these themselves: no objects of Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError, PrepError, StoreError, needs
from fastdata.prepare.finish import finished_shards
from fastdata.prepare.plan import Work, check_host, load_plan, plan_folder, plan_path
from fastdata.prepare.run import Report, run_shards
from fastdata.sources.urls import reading_urls

__all__ = ["run_on_ray"]

RETRIES = 10  # of a task whose node or process was lost
TASKS_PER_CPU = 16  # of the cluster, so that all are busy to the end
MAX_TASK_SHARDS = 8  # a worker makes the next shard while the last one is flushed
ANSWER_S = 30


def run_on_ray(shards: Sequence[int], report: Report, *, work: Work, workers: int | None, timeout_s: float) -> None:
    """Make some shards of a plan on a Ray cluster. Tasks of lost nodes are run again.

    Args:
        report, timeout_s: as for `run_shards`.
        workers: the most CPUs to use at a time; None: all.
    """
    with needs("ray[client]" if os.environ.get("RAY_ADDRESS", "").startswith("ray://") else "ray"):
        import ray
    with _connected(ray):
        cpus = int(ray.cluster_resources().get("CPU", 1))
        size = max(1, min(MAX_TASK_SHARDS, len(shards) // (cpus * TASKS_PER_CPU)))
        left = [shards[k : k + size] for k in range(0, len(shards), size)][::-1]
        make = ray.remote(max_retries=RETRIES, num_cpus=1)(_make)
        running, done, rejected = list[Any](), 0, 0
        while left or running:
            while left and (workers is None or len(running) < workers):
                running.append(make.remote(left.pop(), str(work.store), dict(work.storage), timeout_s))
            ready, running = ray.wait(running, num_returns=1, timeout=1.0)
            for task_done, task_rejected in ray.get(ready):
                done, rejected = done + task_done, rejected + task_rejected
            report(done, rejected)


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Connect to the cluster that RAY_ADDRESS names, else to a new one on this machine, unless this process is connected.

    Bring this package along; the nodes need its dependencies only. Raise what tasks raise.
    """
    began, address = not ray.is_initialized(), os.environ.get("RAY_ADDRESS", "")
    try:
        if began:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if host and port.isdecimal():  # if nothing answers there, Ray itself would try for minutes
                socket.create_connection((host, int(port)), ANSWER_S).close()
            package = str(Path(__file__).parents[1])
            ray.init(runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise PrepError(f"cannot connect to Ray at RAY_ADDRESS={address}: {error}") from error
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FastDataError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise StoreError(f"Ray could not go on: {error}\nWhat is finished is kept; run the same command again.") from error
    finally:
        if began:
            ray.shutdown()


def _make(shards: Sequence[int], out: str, storage: dict[str, Any], timeout_s: float) -> tuple[int, int]:
    """Make some shards on a node, but those that a lost try of this task has finished. Return the work done, and the rejects."""
    folder = Path(out)
    with reading_urls(storage):
        if not plan_path(plan_folder(folder)).exists():
            raise PrepError(f"OUT {out} is not visible from node {socket.gethostname()}: give a folder that all nodes share")
        work = load_plan(folder, storage)
        check_host(work)
        before = finished_shards(work, shards)
        run_shards([k for k in shards if k not in before], lambda *_: None, work=work, workers=1, timeout_s=timeout_s)
        done = finished_shards(work, shards)
    return sum(work.plan.amounts[k] for k in shards), sum(rejected for _, rejected in done.values())
