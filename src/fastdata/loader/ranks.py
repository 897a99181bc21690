"""Which rank this process is, and how many workers it may start beside the other ranks of its machine."""

from __future__ import annotations

import os

import torch

from fastdata.loader.order import Part
from fastdata.machine import available_cores

__all__ = ["default_workers", "find_part"]


def find_part(rank: int | None, world_size: int | None) -> Part:
    """The arguments, else torch.distributed if it is initialised, else the environment, else rank 0 of 1."""
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else int(os.environ.get("RANK", 0))
        world_size = torch.distributed.get_world_size() if distributed else int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} of world_size {world_size}, but ranks count from 0")
    return Part(rank, world_size)


def default_workers(part: Part, batches: int) -> int:
    """One a core, shared with the other ranks of this machine, and no more than an epoch has batches."""
    gpus = torch.cuda.device_count() or part.world_size  # where nobody says how many ranks this machine has
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", min(part.world_size, gpus)))
    return max(1, min(available_cores() // max(ranks, 1), batches))
