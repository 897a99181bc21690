"""Preparing on Ray: tasks that call `prep_run`, which write shards themselves, and so need no objects of Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError, PrepError, StoreError, needs
from fastdata.prepare.plan import PrepareRun
from fastdata.prepare.run import Report

RETRIES = 10  # of a task whose node or process was lost
TASKS_PER_CPU = 16  # of the cluster, so that all are busy to the end
MAX_TASK_SHARDS = 8  # a worker makes the next shard while the last one is flushed
ANSWER_S = 30


def run_on_ray(
    shards: Sequence[int], report: Report, *, work: PrepareRun, prep_run: Callable[..., Any], workers: int | None, timeout_s: float
) -> None:
    """Make some shards of a plan on a Ray cluster. Tasks of lost nodes are run again.

    report, timeout_s: as for `run_shards`. prep_run: the function of that name. workers: the most CPUs at a time, or None for all.
    """
    with needs("ray[client]" if os.environ.get("RAY_ADDRESS", "").startswith("ray://") else "ray"):
        import ray
    with _connected(ray):
        cpus = int(ray.cluster_resources().get("CPU", 1))
        count = min(work.plan.num_shards, max(cpus * TASKS_PER_CPU, -(-len(shards) // MAX_TASK_SHARDS)))
        make, left = ray.remote(max_retries=RETRIES, num_cpus=1)(prep_run), list(range(count))[::-1]
        given = {"of": count, "workers": 1, "timeout": timeout_s, "storage": dict(work.storage), "progress": False}
        running, done, rejected = dict[Any, int](), 0, 0
        while left or running:
            while left and (workers is None or len(running) < workers):
                task = left.pop()
                running[make.remote(str(work.store), task=task, **given)] = task
            ready, _ = ray.wait([*running], num_returns=1, timeout=1.0)
            for one in ready:
                task = running.pop(one)
                done += sum(work.plan.amounts[k] for k in shards if k % count == task)
                rejected += ray.get(one).rejected
            report(done, rejected)


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Connect to the cluster that RAY_ADDRESS names, else to a new one on this machine, unless this process is connected.

    Nodes get this package from this process, and need only its dependencies installed. Errors of tasks are raised here.
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
