"""Preparing on Ray. Its tasks get the place of the plan and numbers of shards, and publish these themselves: no objects of Ray."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastdata.errors import FastDataError, PrepError, StoreError, needs
from fastdata.prepare.finish import finished_shards
from fastdata.prepare.host import check_host
from fastdata.prepare.plan import Work
from fastdata.prepare.plan_files import load_plan, plan_folder, plan_path
from fastdata.prepare.run import Pool, Report
from fastdata.prepare.upload import opened
from fastdata.sources.urls import reading_urls
from fastdata.store.files import unique

__all__ = ["run_on_ray"]

RETRIES = 10  # of a task whose node or process was lost
PER_CPU = 16  # tasks for each CPU of the cluster, so that all are busy to the end
MOST = 8  # shards of a task: a worker makes the next shard while the last one is flushed
PATIENCE_S = 10  # NFS may show a new file late
ANSWER_S = 30


def run_on_ray(
    shards: Sequence[int],
    report: Report,
    *,
    work: Work,
    workers: int | None,
    timeout_s: float,
) -> None:
    """Make some shards of a plan on a Ray cluster. Tasks of lost nodes are run again.

    Args:
        report: called with the sums of this run: work done, inputs rejected, bytes read.
        work: the plan.
        workers: the most CPUs to use at a time; None: all.
        timeout_s: seconds after which an input is considered to hang its decoder.

    Raises:
        MissingExtraError: Ray is not installed.
        PrepError: a node does not see OUT or the inputs, or would make other bytes.
        StoreError: a node cannot write, or too many are lost.
    """
    with needs("ray[client]" if os.environ.get("RAY_ADDRESS", "").startswith("ray://") else "ray"):
        import ray
    token = plan_path(work.out).with_name(f"{plan_path(work.out).name}.{unique()}.tmp")
    token.touch()
    try:
        with _connected(ray):
            size = max(1, min(MOST, len(shards) // (int(ray.cluster_resources().get("CPU", 1)) * PER_CPU)))
            left = [shards[k : k + size] for k in range(0, len(shards), size)][::-1]
            make = ray.remote(max_retries=RETRIES, num_cpus=1)(_make)
            what = str(work.place), token.name, dict(work.storage), timeout_s
            running, sums = list[Any](), (0, 0, 0)
            while left or running:
                while left and (workers is None or len(running) < workers):
                    running.append(make.remote(left.pop(), *what))
                done, running = ray.wait(running, num_returns=1, timeout=1.0)
                for made in ray.get(done):
                    sums = sums[0] + made[0], sums[1] + made[1], sums[2] + made[2]
                report(*sums)
    finally:
        token.unlink(missing_ok=True)


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Connect to the cluster that RAY_ADDRESS names, else to a new one on this machine, unless this process is connected.

    Bring this package along; the nodes need its dependencies only. Raise what tasks raise.
    """
    began = not ray.is_initialized()
    try:
        if began:
            host, _, port = os.environ.get("RAY_ADDRESS", "").removeprefix("ray://").rpartition(":")
            if host and port.isdecimal():  # if nothing answers there, Ray itself would try for minutes
                socket.create_connection((host, int(port)), ANSWER_S).close()
            package = str(Path(__file__).parents[1])
            ray.init(runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise PrepError(f"cannot connect to Ray at RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}: {error}") from error
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


def _make(shards: Sequence[int], out: str, token: str, storage: dict[str, Any], timeout_s: float) -> tuple[int, int, int]:
    """Make some shards on a node, but those that a lost try of this task has finished.

    Args:
        token: a file that the driver has just written next to the plan, which this node must see if OUT is a folder.

    Returns:
        The work done, the number of rejected inputs, and the bytes read.
    """
    with opened(out, storage) as remote, reading_urls(storage):
        if remote is None:
            _find_token(Path(out), token)
        work = load_plan(Path(out) if remote is None else remote.folder, remote, storage)
        check_host(work)
        finished = finished_shards(work, shards)
        with Pool(work, workers=1, timeout_s=timeout_s) as pool:
            pool.run([k for k in shards if k not in finished])
            done, rejected, size = (pool.total(name) for name in ("done", "rejected", "bytes"))
    done += sum(work.plan.amounts[k] for k in finished)
    return done, rejected + sum(shard.rejected for shard in finished.values()), size


def _find_token(out: Path, token: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not plan_path(plan_folder(out)).with_name(token).exists():
        if time.monotonic() > end:
            raise PrepError(
                f"OUT {out} is not visible from node {socket.gethostname()}: give a folder that all nodes share, "
                "or a URL of object storage"
            )
        time.sleep(0.2)
