"""This process's rank, and how many workers it may start next to the other ranks of its machine."""

from __future__ import annotations

import os
from typing import TypeVar

import torch

from fastdata.errors import LoaderError
from fastdata.loader.order import Part
from fastdata.system.machine import available_cores

__all__ = ["default_workers", "find_part"]

T = TypeVar("T")


def find_part(rank: int | None, world_size: int | None) -> Part:
    """Return this process's rank and the number of ranks.

    They come from the arguments, else from torch.distributed if it is initialized, else from the environment: RANK and WORLD_SIZE,
    as torchrun and Accelerate set them, or WORLD_SIZE with NODE_RANK and LOCAL_RANK, as Lightning does. The default is rank 0 of 1.

    Raises:
        ValueError: the arguments are out of range, or only one of them is given.
        LoaderError: torch.distributed contradicts the environment, or nothing says which of several ranks this is.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank} of world_size {world_size}, but ranks count from 0")
        return Part(rank, world_size)
    size = _number("WORLD_SIZE", 1)
    number = _number("RANK", _rank_by_node(size))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found = Part(torch.distributed.get_rank(), torch.distributed.get_world_size())
        if "WORLD_SIZE" in os.environ and number is not None and (number, size) != (found.rank, found.world_size):
            raise LoaderError(
                f"torch.distributed says that this is rank {found.rank} of {found.world_size}, but RANK and WORLD_SIZE in the "
                f"environment say rank {number} of {size}: give the Loader rank= and world_size="
            )
        return found
    if number is None:
        raise LoaderError(
            f"WORLD_SIZE is {size}, but nothing says which rank this process is, and all would read the same samples. "
            "Initialize torch.distributed before the loader is used, set RANK, or give the Loader rank= and world_size="
        )
    if not 0 <= number < size:
        raise LoaderError(f"the environment says RANK {number} and WORLD_SIZE {size}, but ranks count from 0 to WORLD_SIZE - 1")
    return Part(number, size)


def _rank_by_node(size: int) -> int | None:
    """Return the rank by NODE_RANK and LOCAL_RANK, which Lightning sets; None: they do not determine it."""
    if size == 1:
        return 0
    if "LOCAL_RANK" not in os.environ or "NODE_RANK" not in os.environ:
        return None
    node, per_node = _number("NODE_RANK", 0), _number("LOCAL_WORLD_SIZE", None)
    if node and per_node is None:
        return None
    return node * (per_node or 0) + _number("LOCAL_RANK", 0)


def _number(name: str, default: T) -> int | T:
    """Return an environment variable that is a whole number."""
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise LoaderError(f"the environment variable {name} is {text!r}, but must be a whole number") from error


def default_workers(part: Part, batches: int) -> int:
    """Return one worker for each core of this rank, and no more than an epoch has batches."""
    return min(_cores_of(part), max(1, batches))


def _cores_of(part: Part) -> int:
    """Return the cores of this machine for each of its ranks, at least 1."""
    gpus = torch.cuda.device_count() or part.world_size
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", min(part.world_size, gpus)))  # unset: a rank for each GPU
    return max(1, available_cores() // max(ranks, 1))
