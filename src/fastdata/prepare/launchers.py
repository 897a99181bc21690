"""The number of this task among all, from the environment that a launcher sets."""

from __future__ import annotations

import os

__all__ = ["find_task", "local_tasks"]

# A process's number and the number of all, as set by torchrun and Accelerate; Open MPI; MPICH and Intel MPI; AWS Batch; and srun,
# which is the last because the others are often started inside a Slurm job.
RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
# A number alone: of a Slurm array (its size is wrong where some of its tasks are submitted again), and of a job of Kubernetes.
INDICES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def find_task(task: int | None, of: int | None) -> tuple[int, int]:
    """Return the number of this task, from 0, and the number of tasks. None: as the environment says; without it, one task.

    Raises:
        ValueError: the number is out of range, or the number of tasks is not known.
    """
    if task is not None:
        return _checked(task, of, "--task")
    for name in INDICES if of is not None else ():
        if (number := _number(name)) is not None:
            return _checked(number, of, name)
    for name, size in RANKS:
        if (number := _number(name)) is None or (count := _number(size)) is None or count == 1:
            continue
        if of not in (None, count):
            raise ValueError(f"--of is {of}, but {size} in the environment is {count}: leave --of out")
        return _checked(number, count, name)
    for name in INDICES:
        if (number := _number(name)) is not None:
            return _checked(number, of, name)
    if of is not None and of != 1:
        raise ValueError(f"--of is {of}, but nothing says which of these tasks this is: give --task, a number from 0 to {of - 1}")
    return 0, 1


def local_tasks() -> int:
    """Return how many tasks a launcher has started on this machine."""
    return next((number for name in LOCAL if (number := _number(name))), 1)


def _checked(task: int, of: int | None, name: str) -> tuple[int, int]:
    if of is None:
        raise ValueError(f"{name} is {task}, but nothing says how many tasks there are: give --of")
    if not 0 <= task < of:
        raise ValueError(f"{name} is {task} of {of} tasks, but tasks count from 0 to {of - 1}")
    return task, of


def _number(name: str) -> int | None:
    """Return an environment variable that is a whole number."""
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} is {text!r}, but must be a whole number") from None
